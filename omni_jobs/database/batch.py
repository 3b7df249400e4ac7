"""Statements for many rows at once, whose text does not grow with the rows.

    Batch       an UPDATE or an INSERT for each of many rows
    run_all     several of them and what follows, with PostgreSQL in one round trip
    one_of      ``column IN (…)``, the list one parameter, made by ``listed``
    among       ``column IN (SELECT …)``
    in_pairs    two columns are one of many pairs of numbers, one parameter, made by ``paired``

SQLite runs a prepared statement for each row faster than anything else. PostgreSQL wants one
round trip, and gets the rows as one parameter of JSON: in arrays they cost the client three
times as much. A statement with a parameter for each value would be rendered, parsed and
planned anew for each number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    Select,
    Text,
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
from sqlalchemy.types import TypeEngine

from omni_jobs.database.statement import Call, Statement, execute_pipelined
from omni_jobs.database.tables import Base, encode_json

__all__ = ["Batch", "Given", "among", "in_pairs", "listed", "one_of", "paired", "run_all"]

_NOT_EXACT = "rows have changed that this transaction has locked"
_DIVISION_BY_ZERO = "22012"
_FEW = 32  # rows for which a statement of its own costs more than to be a part of another
_Type = type[TypeEngine[Any]]
_InOrder = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Given = Mapping[str, ColumnElement[Any]]
"""The columns of the rows that a statement is run for."""


class Batch:
    """A statement, and the columns of the rows that it is run for.

    Values go to the database as they are given: those of JSON columns are given as text, those
    of Boolean ones best as 0 and 1, which are quicker to bind.
    """

    def __init__(
        self, columns: Mapping[str, _Type], one: Callable[[Given], UpdateBase], many: Callable[[int], UpdateBase]
    ) -> None:
        """``one`` gives the statement for one row of these columns, ``many`` that for a record set of all.

        ``many`` is given the number of its parameters' names: one statement may hold several.
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
        """``columns``: Text, Integer, BigInteger, Double, Boolean or LargeBinary, by name.

        ``statement`` builds the update from them; constants in it are to be literal columns. ``key``:
        the table's column that the first of them names. PostgreSQL gets a list of the keys besides:
        to join the rows alone it would, by a plan made while the table was small, walk all of it.
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
        """Insert the rows; ``columns`` of the table, which leave out only what may be NULL or has a server's default.

        ``alike``: columns that have the same value in every row, a literal. ``unless_there``: rows that
        would break a unique constraint are passed over.
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

    @cached_property
    def _alone(self) -> Statement:
        return Statement(self._many(0))

    def run(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """How many rows of the table it changed. ``rows`` give the columns in their order."""
        if not rows:
            return 0
        if tx.dialect.name == "sqlite":
            statement, in_order = self._for(rows)
            return tx.exec_driver_sql(statement, list(map(in_order, rows))).rowcount
        return self._alone.run(tx, self.parameters(0, rows))

    def returning(self, rows: Sequence[tuple[Any, ...]], *columns: Any) -> Call:
        """For PostgreSQL: what runs it, and gives these columns of the rows that it changed, in no order."""
        if columns not in self._returning:
            self._returning[columns] = Statement(self._many(0).returning(*columns))
        return self._returning[columns], self.parameters(0, rows)

    def _for(self, rows: Sequence[tuple[Any, ...]]) -> tuple[str, _InOrder]:
        """With SQLite: the statement for these rows, and what takes its values out of one.

        What is NULL in all of them is in its text: to bind None costs more than any other value.
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
        """With PostgreSQL: the statement for all rows, as a part of another; it gives a row for each it changed."""
        return self._many(number).returning(literal_column("1")).cte(f"part{number}")

    def parameters(self, number: int, rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
        """Those of ``part``."""
        # What is missing is NULL as well, and need not be written or read.
        items = [
            {name: value for name, value in zip(self._names, row, strict=True) if value is not None} for row in rows
        ]
        for name in self._bytes:
            for item in items:
                if name in item:
                    item[name] = item[name].hex()
        found = {f"rows{number}": encode_json(items)}
        if self._has_keys:
            found[f"keys{number}"] = listed(row[0] for row in rows)
        return found


def run_all(
    tx: Connection,
    work: Sequence[tuple[Batch, Sequence[tuple[Any, ...]]]],
    *,
    exact: int = 0,
    commit: bool = False,
) -> None:
    """Run several batches, each for its rows.

    They must touch disjoint rows, and none may depend on another: on PostgreSQL batches of few rows become CTEs of
    one statement and share a snapshot. Each of the first ``exact`` batches must change every row it is given;
    otherwise RuntimeError is raised and everything is rolled back. ``commit`` is that of ``execute_pipelined``.
    """
    parts = [(number, batch, rows) for number, (batch, rows) in enumerate(work) if rows]
    if tx.dialect.name == "sqlite":
        for number, batch, rows in parts:
            if batch.run(tx, rows) != len(rows) and number < exact:
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


def _all_of(group: Sequence[tuple[int, Batch, Sequence[tuple[Any, ...]]]], exact: int) -> Call:
    """One statement for all of these."""
    parameters = {"expected": str(sum(len(rows) for number, _, rows in group if number < exact))}
    for number, batch, rows in group:
        parameters |= batch.parameters(number, rows)
    return _together(exact, *((number, batch) for number, batch, _ in group)), parameters


@cache
def _together(exact: int, *parts: tuple[int, Batch]) -> Statement:
    """The statement that runs all of these.

    It fails when the first do not change as many rows as expected: the transaction may end with the
    message, before anybody here has seen what they changed.
    """
    done = [(number, select(func.count()).select_from(batch.part(number)).scalar_subquery()) for number, batch in parts]
    checked: Any = sum((count for number, count in done if number < exact), literal_column("0"))
    is_exact = checked == sql_cast(bindparam("expected", type_=Text), Integer)
    others = (count for number, count in done if number >= exact)
    return Statement(select(literal_column("1") / sql_cast(is_exact, Integer), *others))


def _record_set(columns: Mapping[str, _Type], number: int) -> Given:
    types = {name: Text if type_ is LargeBinary else type_ for name, type_ in columns.items()}
    rows = func.json_to_recordset(sql_cast(bindparam(f"rows{number}", type_=Text), JSON))
    given = rows.table_valued(*(column(name, type_) for name, type_ in types.items()))
    found = given.render_derived(name=f"given{number}", with_types=True).c
    return {
        name: func.decode(found[name], literal_column("'hex'"), type_=LargeBinary)
        if type_ is LargeBinary
        else found[name]
        for name, type_ in columns.items()
    }


def listed(values: Iterable[Any]) -> str:
    """The parameter for a list of numbers or of strings."""
    return encode_json(list(values))


def paired(pairs: Mapping[int, int]) -> str:
    """The parameter for pairs of numbers, whose firsts all differ."""
    return encode_json({str(first): second for first, second in pairs.items()})


class one_of(FunctionElement[Any]):
    """``one_of(column, bindparam(…, type_=Text))``: the column is one of the numbers or strings listed.

    Not a Boolean to SQLAlchemy, which would compare it with 1 in SQLite: no index serves that.
    """

    inherit_cache = True
    name = "one_of"


@compiles(one_of, "sqlite")
def _one_of_sqlite(element: one_of, compiler: Any, **options: Any) -> str:
    which, values = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} IN (SELECT value FROM json_each({values}))"  # noqa: S608 — parts that SQLAlchemy rendered


@compiles(one_of, "postgresql")
def _one_of_postgresql(element: one_of, compiler: Any, **options: Any) -> str:
    # An array found first, not a join: whatever the statistics say, the column's index serves it.
    which, values = (compiler.process(part, **options) for part in element.clauses)
    type_ = "bigint" if isinstance(next(iter(element.clauses)).type, Integer) else "text"
    found = f"SELECT value::{type_} FROM json_array_elements_text(CAST({values} AS JSON))"  # noqa: S608 — the same
    return f"{which} = ANY (ARRAY({found}))"


class among(FunctionElement[Any]):
    """``among(column, select(…))``: the column is one of those found. Not a Boolean, like ``one_of``."""

    inherit_cache = True
    name = "among"

    def __init__(self, which: Any, found: Select[Any]) -> None:
        super().__init__(which, found.scalar_subquery())


@compiles(among, "sqlite")
def _among_sqlite(element: among, compiler: Any, **options: Any) -> str:
    which, found = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} IN {found}"


@compiles(among, "postgresql")
def _among_postgresql(element: among, compiler: Any, **options: Any) -> str:
    # As an array, or a plan of the table's first minute would walk all of it.
    which, found = (compiler.process(part, **options) for part in element.clauses)
    return f"{which} = ANY (ARRAY{found})"


def in_pairs(first: Any, second: Any, pairs: ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    """Conditions: the two columns, the first of which an index serves, are one of the pairs of numbers given."""
    each = _members(pairs).table_valued("key", "value", name="pairs").c
    return first == _number(each.key), second == _number(each.value), _among_firsts(first, pairs)


class _among_firsts(FunctionElement[Any]):
    """For PostgreSQL, which might walk the table to join it; SQLite goes by the pairs as it is."""

    inherit_cache = True
    name = "among_firsts"


@compiles(_among_firsts, "sqlite")
def _among_firsts_sqlite(element: _among_firsts, compiler: Any, **options: Any) -> str:
    return "1"


@compiles(_among_firsts, "postgresql")
def _among_firsts_postgresql(element: _among_firsts, compiler: Any, **options: Any) -> str:
    which, pairs = (compiler.process(part, **options) for part in element.clauses)
    found = f"SELECT json_object_keys(CAST({pairs} AS JSON))::bigint"
    return f"{which} = ANY (ARRAY({found}))"


class _members(FunctionElement[Any]):
    inherit_cache = True
    name = "members"


class _number(FunctionElement[int]):
    inherit_cache = True
    name = "number"
    type = BigInteger()


@compiles(_members, "sqlite")
def _members_sqlite(element: _members, compiler: Any, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)})"


@compiles(_members, "postgresql")
def _members_postgresql(element: _members, compiler: Any, **options: Any) -> str:
    return f"json_each_text(CAST({compiler.process(element.clauses, **options)} AS JSON))"


@compiles(_number, "sqlite")
def _number_sqlite(element: _number, compiler: Any, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS INTEGER)"


@compiles(_number, "postgresql")
def _number_postgresql(element: _number, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)})::bigint"
