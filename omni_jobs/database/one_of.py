"""``one_of``: the SQL condition that a column is in a list, for statements that SQLAlchemy writes.

A statement with a parameter for each value would be rendered, parsed and planned anew for each number of values.
"""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Integer

from omni_jobs.database.statement import words


class one_of(FunctionElement[Any]):
    """The SQL condition that a column is in a list: ``one_of(column, bindparam(…))``; ``listed`` makes the parameter.

    Its type is not Boolean, because on SQLite SQLAlchemy would write ``(…) = 1``, which no index serves.
    """

    inherit_cache = True
    name = "one_of"


@compiles(one_of)
def _one_of(element: one_of, compiler: Any, **options: Any) -> str:
    column, values = (compiler.process(part, **options) for part in element.clauses)
    is_number = isinstance(next(iter(element.clauses)).type, Integer)
    is_in_list = words(compiler.dialect.name)["ids" if is_number else "names"]
    return f"{column} {is_in_list.replace(':ids', values)}"
