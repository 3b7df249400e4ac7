"""``one_of``: the SQL condition that a column is in a list, for statements that SQLAlchemy writes.

A statement with a parameter for each value would be rendered, parsed and planned anew for each number of values.
"""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Integer


class one_of(FunctionElement[Any]):
    """The SQL condition that a column is in a list: ``one_of(column, bindparam(…))``; ``listed`` makes the parameter.

    Its type is not Boolean, because on SQLite SQLAlchemy would write ``(…) = 1``, which no index serves.
    """

    inherit_cache = True
    name = "one_of"


@compiles(one_of, "sqlite")
def _one_of_sqlite(element: one_of, compiler: Any, **options: Any) -> str:
    which, values = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} IN (SELECT value FROM json_each({values}))"  # noqa: S608 — parts that SQLAlchemy rendered


@compiles(one_of, "postgresql")
def _one_of_postgresql(element: one_of, compiler: Any, **options: Any) -> str:
    # An array, not a join: whatever the statistics say, the column's index serves it.
    which, values = (compiler.process(part, **options) for part in element.clauses)
    type_ = "bigint" if isinstance(next(iter(element.clauses)).type, Integer) else "text"
    members = f"SELECT value::{type_} FROM json_array_elements_text(CAST({values} AS JSON))"  # noqa: S608 — the same
    return f"{which} = ANY (ARRAY({members}))"
