"""Statements that SQLAlchemy writes once and the database's own driver runs: those of every job.

    Statement.rows, .run    one
    execute_pipelined          several, one after the other; with PostgreSQL in one round trip

To run a statement through SQLAlchemy costs the client as much again as the driver and the
network do, and every round trip costs both sides more than most statements (docs/performance.md).
Nothing converts values on the way: parameters and rows hold what the driver knows, JSON is text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import xxhash
from sqlalchemy import Connection, Dialect, exc
from sqlalchemy.sql.base import Executable

__all__ = ["Call", "Statement", "execute_pipelined", "prepare_nothing", "prepares_nothing"]

logger = logging.getLogger(__name__)

_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE
_Rows = list[tuple[Any, ...]]
_pooled: WeakSet[Dialect] = WeakSet()  # of engines behind a pooler


class _Compiled(NamedTuple):
    text: str
    names: tuple[str, ...]  # of the parameters, in their order


class Prepared(NamedTuple):
    """Equal names are equal statements, whichever build made them: they may meet in one session."""

    name: str
    definition: str
    parameters: tuple[str, ...]  # their names, in order


class Statement:
    """For both databases; all its parameters are named and given when it is run, constants are literal columns."""

    def __init__(self, statement: Executable) -> None:
        self._statement: Any = statement
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, tx: Connection, parameters: Mapping[str, Any]) -> _Rows:
        """Run it; what it gives."""
        cursor = self._execute(tx, parameters)
        try:
            return cursor.fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()

    def run(self, tx: Connection, parameters: Mapping[str, Any]) -> int:
        """Run it; how many rows it changed."""
        cursor = self._execute(tx, parameters)
        try:
            return cursor.rowcount  # type: ignore[no-any-return]
        finally:
            cursor.close()

    def _execute(self, tx: Connection, parameters: Mapping[str, Any]) -> Any:
        name = tx.dialect.name
        compiled = self._compiled.get(name) or self._compile(name, tx.dialect)
        given = parameters if name == "postgresql" else [parameters[each] for each in compiled.names]
        try:
            cursor: Any = tx.connection.cursor()
            cursor.execute(compiled.text, given)
        except _errors(tx) as error:
            _give_up(tx, compiled.text, error)
        return cursor

    def _compile(self, name: str, dialect: Dialect) -> _Compiled:
        compiled: Any = self._statement.compile(dialect=dialect)
        if constants := sorted(key for key, value in compiled.params.items() if value is not None):
            raise ValueError(f"not given when it is run: {constants}")
        found = _Compiled(str(compiled), tuple(compiled.positiontup or compiled.params))
        self._compiled[name] = found
        return found

    @cached_property
    def prepared(self) -> Prepared:
        """For PostgreSQL's ``EXECUTE``; all parameters are text."""
        text, names = self._compile("prepared", _numbering())
        name = f"omni_jobs_{xxhash.xxh3_128_hexdigest(text.encode())}"
        types = f"({', '.join(['text'] * len(names))})" if names else ""
        return Prepared(name, f"PREPARE {name}{types} AS {text}", names)


Call = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters."""


def execute_pipelined(tx: Connection, calls: Sequence[Call], *, commit: bool = False) -> list[_Rows]:
    """Run each of these, which all give rows, and all of whose parameters are text; the rows of each.

    In a transaction that ``Database.run_pipelined`` has left for this to begin, PostgreSQL begins it
    with the message; with ``commit``, which says that nothing follows in it, it ends it as well.
    """
    if tx.dialect.name != "postgresql" or not calls:
        return [statement.rows(tx, parameters) for statement, parameters in calls]
    raw: Any = tx.connection.dbapi_connection
    begins = raw.autocommit and raw.pgconn.transaction_status == _IDLE
    try:
        if prepares_nothing(tx.dialect):
            if begins:
                raw.execute("BEGIN")
            return [statement.rows(tx, parameters) for statement, parameters in calls]
        message = [_call(tx, raw, statement.prepared, parameters) for statement, parameters in calls]
        with raw.cursor() as cursor:
            cursor.execute(b"; ".join([b"BEGIN"] * begins + message + [b"COMMIT"] * commit), prepare=False)
            if begins:
                cursor.nextset()
            found = [cursor.fetchall()]
            while len(found) < len(calls):
                cursor.nextset()
                found.append(cursor.fetchall())
            return found
    except _errors(tx) as error:
        _give_up(tx, "; ".join(statement.prepared.definition for statement, _ in calls), error)


def prepare_nothing(dialect: Dialect) -> None:
    """From now on, for this engine of PostgreSQL: a pooler gives each of its transactions another session."""
    if dialect not in _pooled:
        logger.warning("a pooler stands before the database: nothing is prepared, statements go one by one")
        _pooled.add(dialect)


def prepares_nothing(dialect: Dialect) -> bool:
    """Whether ``prepare_nothing`` was said of it."""
    return dialect in _pooled


def _call(tx: Connection, raw: Any, statement: Prepared, parameters: Mapping[str, str]) -> bytes:
    """What runs it in this session, which has it then."""
    known: set[str] = tx.connection.info.setdefault("omni_jobs_prepared", set())
    if statement.name not in known:
        raw.execute(statement.definition, prepare=False)
        known.add(statement.name)
    call = b"EXECUTE " + statement.name.encode()
    if not statement.parameters:
        return call
    from psycopg.pq import Escaping

    escape = Escaping(raw.pgconn).escape_literal
    return call + b"(" + b", ".join(bytes(escape(parameters[name].encode())) for name in statement.parameters) + b")"


def _errors(tx: Connection) -> Any:
    return tx.dialect.loaded_dbapi.Error


def _give_up(tx: Connection, text: str, error: Exception) -> NoReturn:
    """Raise the driver's error as SQLAlchemy's."""
    dialect: Any = tx.dialect
    if dialect.is_disconnect(error, tx.connection.dbapi_connection, None):
        # Let SQLAlchemy meet it: it gives up the connections of its pool then.
        tx.exec_driver_sql("SELECT 1")
    raise exc.DBAPIError.instance(text, None, error, _errors(tx), dialect=dialect) from error


@cache
def _numbering() -> Dialect:
    from sqlalchemy.dialects.postgresql.base import PGDialect  # takes long to load: SQLite does without

    return PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
