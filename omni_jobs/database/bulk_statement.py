"""SQL statements for many rows, whose text is the same for any number of rows.

    BulkStatement   an UPDATE or an INSERT for each of many rows
    run_all         several of them, on PostgreSQL in one round trip
    one_of          ``column IN (…)``; the list is one parameter, made by ``listed``
    among           ``column IN (SELECT …)``

SQLite runs a prepared statement for each row faster than any statement for all. PostgreSQL gets all rows as one
parameter of JSON, because arrays cost the client three times as much. A statement with a parameter for each value
would be rendered, parsed and planned anew for each number of rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Select,
    Update,
    bindparam,
    column,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DataError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import JSON, Integer, LargeBinary, Text, TypeEngine

from omni_jobs.database.statement import Call, Statement, execute_pipelined
from omni_jobs.database.tables import Base, encode_json

_NOT_EXACT = "rows have changed that this transaction has locked"
_DIVISION_BY_ZERO = "22012"
_FEW = 32  # with so many rows or fewer, one statement for several bulk statements costs less than one for each
_Type = type[TypeEngine[Any]]
_InOrder = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Given = Mapping[str, ColumnElement[Any]]
"""SQL expressions for the values of the row that a bulk statement is run for, by column name."""


class BulkStatement:
    """An UPDATE or INSERT that is run for many rows at once, on SQLite or PostgreSQL.

    ``update`` and ``insert`` build it. A row is a tuple of values. Values are not converted: give those of JSON
    columns as text, and those of Boolean columns best as 0 and 1, which are quicker to bind.
    """

    def __init__(
        self, columns: Mapping[str, _Type], one: Callable[[Given], UpdateBase], many: Callable[[int], UpdateBase]
    ) -> None:
        """Hold the functions that build the SQL: ``one`` SQLite's for one row, ``many`` PostgreSQL's for all rows.

        ``many`` takes a number that makes the names of its parameters unique, because one statement may hold
        several bulk statements. Raises ValueError when ``one`` uses parameters that are not in ``columns``.
        """
        self._names = list(columns)
        self._bytes = [name for name, type_ in columns.items() if type_ is LargeBinary]
        self._bound: dict[str, ColumnElement[Any]] = {
            name: bindparam(name, type_=type_()) for name, type_ in columns.items()
        }
        self._one = one
        self._for_rows: dict[tuple[int, ...], tuple[str, _InOrder]] = {(): self._compiled(())}
        self._many = many
        self._returning: dict[tuple[Any, ...], Statement] = {}
        self._has_keys = isinstance(one(self._bound), Update)

    @classmethod
    def update(cls, key: Any, columns: Mapping[str, _Type], statement: Callable[[Given], Update]) -> Self:
        """Return a bulk UPDATE.

        ``columns`` are the types of a row's values by name: Text, Integer, BigInteger, Double, Boolean or
        LargeBinary. ``statement`` is called with SQL expressions for these values by name, and returns the UPDATE;
        write constants in it with ``literal_column``. ``key`` is the table's column that equals a row's first
        value. PostgreSQL also gets all keys as an array, because a plan cached while the table was small would scan
        the whole table.
        """

        def many(number: int) -> UpdateBase:
            keys = bindparam(f"keys{number}", type_=Text)
            return statement(_record_set(columns, number)).where(one_of(key, keys))

        return cls(columns, statement, many)

    @classmethod
    def insert(
        cls,
        table: type[Base],
        columns: Mapping[str, _Type],
        *,
        alike: Given = MappingProxyType({}),
        unless_there: bool = False,
    ) -> Self:
        """Return a bulk INSERT.

        ``columns`` are the types, by name, of the table's columns that a row has values for. ``alike`` are literals,
        by name, for columns that have the same value in every row. All other columns are NULL or have a server's
        default. With ``unless_there`` rows that would break a unique constraint are left out.
        """
        target: Any = table.__table__

        def one(given: Given) -> UpdateBase:
            row = sqlite.insert(target).values({**given, **alike})
            return row.on_conflict_do_nothing() if unless_there else row

        def many(number: int) -> UpdateBase:
            from sqlalchemy.dialects import postgresql  # takes long to load: SQLite does without

            given = {**_record_set(columns, number), **alike}
            rows = postgresql.insert(target).from_select(list(given), select(*given.values()))
            return rows.on_conflict_do_nothing() if unless_there else rows

        return cls(columns, one, many)

    def run(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run the statement for each of these rows, and return how many rows of the table changed."""
        if not rows:
            return 0
        if tx.dialect.name == "sqlite":
            statement, in_order = self._for(rows)
            return tx.exec_driver_sql(statement, list(map(in_order, rows))).rowcount
        for_all, parameters = self.returning(rows)
        return for_all.run(tx, parameters)

    def returning(self, rows: Sequence[tuple[Any, ...]], *columns: Any) -> Call:
        """Return PostgreSQL's statement, not run, with its parameters; it returns these columns of the changed rows."""
        if columns not in self._returning:
            statement = self._many(0)
            self._returning[columns] = Statement(statement.returning(*columns) if columns else statement)
        return self._returning[columns], self.parameters(0, rows)

    def _for(self, rows: Sequence[tuple[Any, ...]]) -> tuple[str, _InOrder]:
        """Return SQLite's statement for these rows, and the function that picks its values out of a row.

        Columns that are NULL in all rows are NULL in its text, because to bind None costs more than any other value.
        """
        nulls = tuple(n for n, value in enumerate(rows[0]) if value is None and all(row[n] is None for row in rows))
        if nulls not in self._for_rows:
            self._for_rows[nulls] = self._compiled(nulls)
        return self._for_rows[nulls]

    def _compiled(self, nulls: Sequence[int]) -> tuple[str, _InOrder]:
        given = self._bound | {self._names[n]: null() for n in nulls}
        compiled: Any = self._one(given).compile(dialect=sqlite.dialect())
        order: list[str] = compiled.positiontup
        if foreign := set(order) - set(self._names):
            raise ValueError(f"parameters that no row gives: {sorted(foreign)}")
        taken = [self._names.index(name) for name in order]
        return str(compiled), itemgetter(*taken) if len(taken) > 1 else itemgetter(slice(taken[0], taken[0] + 1))

    def part(self, number: int) -> CTE:
        """Return PostgreSQL's statement as a CTE, a part of a larger statement, with one row for each changed row.

        ``number`` tells its parameters from those of the other CTEs in that statement.
        """
        return self._many(number).returning(literal_column("1")).cte(f"part{number}")

    def parameters(self, number: int, rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
        """Return the parameters, by name, that give these rows to the CTE that ``part`` returns for this number."""
        # A value that is left out is NULL as well, and need not be written or read.
        items = [
            {name: value for name, value in zip(self._names, row, strict=True) if value is not None} for row in rows
        ]
        for name in self._bytes:
            for item in items:
                if name in item:
                    item[name] = item[name].hex()
        parameters = {f"rows{number}": encode_json(items)}
        if self._has_keys:
            parameters[f"keys{number}"] = listed(row[0] for row in rows)
        return parameters


def run_all(
    tx: Connection,
    work: Sequence[tuple[BulkStatement, Sequence[tuple[Any, ...]]]],
    *,
    exact: int = 0,
    commit: bool = False,
) -> None:
    """Run several bulk statements, each for its rows; on PostgreSQL in one round trip.

    No two may change the same row, and none may depend on another, because with few rows PostgreSQL runs all of them
    as one statement. With ``commit``, for the last step of a transaction, PostgreSQL commits in the same round trip.
    Raises RuntimeError unless each of the first ``exact`` statements changes as many rows as it is given.
    """
    parts = [(number, bulk, rows) for number, (bulk, rows) in enumerate(work) if rows]
    if tx.dialect.name == "sqlite":
        for number, bulk, rows in parts:
            if bulk.run(tx, rows) != len(rows) and number < exact:
                raise RuntimeError(_NOT_EXACT)
        return
    are_few = sum(len(rows) for _, _, rows in parts) <= _FEW
    groups = [parts] if parts and are_few else [[each] for each in parts]
    try:
        execute_pipelined(tx, [_all_of(group, exact) for group in groups], commit=commit)
    except DataError as error:
        if getattr(error.orig, "sqlstate", None) == _DIVISION_BY_ZERO:
            raise RuntimeError(_NOT_EXACT) from error
        raise


def _all_of(group: Sequence[tuple[int, BulkStatement, Sequence[tuple[Any, ...]]]], exact: int) -> Call:
    """Return one call for all bulk statements of a group, given as (number, bulk, rows)."""
    parameters = {"expected": str(sum(len(rows) for number, _, rows in group if number < exact))}
    for number, bulk, rows in group:
        parameters |= bulk.parameters(number, rows)
    return _together(exact, *((number, bulk) for number, bulk, _ in group)), parameters


@cache
def _together(exact: int, *parts: tuple[int, BulkStatement]) -> Statement:
    """Return the statement that runs these (number, bulk).

    It divides by zero when those with a number below ``exact`` do not change as many rows as expected. It must fail by
    itself, because the message may commit before its results are read here.
    """
    counts = [(number, select(func.count()).select_from(bulk.part(number)).scalar_subquery()) for number, bulk in parts]
    checked: Any = sum((count for number, count in counts if number < exact), literal_column("0"))
    is_exact = checked == sql_cast(bindparam("expected", type_=Text), Integer)
    others = (count for number, count in counts if number >= exact)
    return Statement(select(literal_column("1") / sql_cast(is_exact, Integer), *others))


def _record_set(columns: Mapping[str, _Type], number: int) -> Given:
    """Return the columns of all rows, which PostgreSQL reads from the parameter ``rows`` of this number."""
    types = {name: Text if type_ is LargeBinary else type_ for name, type_ in columns.items()}
    rows = func.json_to_recordset(sql_cast(bindparam(f"rows{number}", type_=Text), JSON))
    given = rows.table_valued(*(column(name, type_) for name, type_ in types.items()))
    record = given.render_derived(name=f"given{number}", with_types=True).c
    return {
        name: func.decode(record[name], literal_column("'hex'"), type_=LargeBinary)
        if type_ is LargeBinary
        else record[name]
        for name, type_ in columns.items()
    }


def listed(values: Iterable[Any]) -> str:
    """Return numbers or strings as the text that ``one_of`` takes for its list."""
    return encode_json(list(values))


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


class among(FunctionElement[Any]):
    """The SQL condition that a column is in a subquery's result: ``among(column, select(…))``. An index serves it."""

    inherit_cache = True
    name = "among"

    def __init__(self, which: Any, selected: Select[Any]) -> None:
        super().__init__(which, selected.scalar_subquery())


@compiles(among, "sqlite")
def _among_sqlite(element: among, compiler: Any, **options: Any) -> str:
    which, selected = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} IN {selected}"


@compiles(among, "postgresql")
def _among_postgresql(element: among, compiler: Any, **options: Any) -> str:
    # As an array, because a plan cached while the table was small would scan all of it.
    which, selected = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} = ANY (ARRAY{selected})"
