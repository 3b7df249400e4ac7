"""``Statement``: SQL that SQLAlchemy compiles once and the database's own driver executes.

    Statement.rows, .run    execute one statement
    execute_pipelined       execute several in their order; on PostgreSQL in one round trip

The statements that run for every job are of this kind, because SQLAlchemy's own execution doubles the client's cost,
and every round trip costs both sides more than most statements (docs/performance.md). Values are not converted:
parameters and rows hold the driver's own types, and JSON is text.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import xxhash
from sqlalchemy import Connection, Dialect, exc
from sqlalchemy.sql.base import Executable

logger = logging.getLogger(__name__)

_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE
_Rows = list[tuple[Any, ...]]
_pooled: WeakSet[Dialect] = WeakSet()  # the dialects of engines behind a pooler


class _Compiled(NamedTuple):
    text: str
    parameters: tuple[str, ...]  # their names, in order


class Prepared(NamedTuple):
    """A statement that PostgreSQL prepares once in each session, and then executes by its name."""

    name: str  # a hash of the text, so that two builds whose statements meet in one session agree
    definition: str  # PREPARE …
    parameters: tuple[str, ...]  # their names, in order


class Statement:
    """An SQL statement for both databases, compiled once for each and executed by the database's own driver.

    The driver's errors are raised as SQLAlchemy's, which ``Database.run`` knows.
    """

    def __init__(self, statement: Executable) -> None:
        """Hold SQLAlchemy's statement; its first execution on a database compiles it.

        Write parameters with ``bindparam`` and constants with ``literal_column``. For a constant that SQLAlchemy makes
        a parameter of its own, ``rows`` and ``run`` raise ValueError.
        """
        self._statement: Any = statement
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, tx: Connection, parameters: Mapping[str, Any]) -> _Rows:
        """Execute the statement with parameters by name, and return its rows."""
        cursor = self._execute(tx, parameters)
        try:
            return cursor.fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()

    def run(self, tx: Connection, parameters: Mapping[str, Any]) -> int:
        """Execute the statement with parameters by name, and return the number of rows that it changed."""
        cursor = self._execute(tx, parameters)
        try:
            return cursor.rowcount  # type: ignore[no-any-return]
        finally:
            cursor.close()

    def _execute(self, tx: Connection, parameters: Mapping[str, Any]) -> Any:
        name = tx.dialect.name
        compiled = self._compiled.get(name) or self._compile(name, tx.dialect)
        given = parameters if name == "postgresql" else [parameters[each] for each in compiled.parameters]
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
        self._compiled[name] = _Compiled(str(compiled), tuple(compiled.positiontup or compiled.params))
        return self._compiled[name]

    @cached_property
    def prepared(self) -> Prepared:
        """The statement's PREPARE command for PostgreSQL and the name it gives; all parameters are of type text."""
        text, names = self._compile("prepared", _numbering())
        name = f"omni_jobs_{xxhash.xxh3_128_hexdigest(text.encode())}"
        types = f"({', '.join(['text'] * len(names))})" if names else ""
        return Prepared(name, f"PREPARE {name}{types} AS {text}", names)


Call = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters by name."""


def execute_pipelined(tx: Connection, calls: Sequence[Call], *, commit: bool = False) -> list[_Rows]:
    """Execute statements in their order, and return the rows of each. On PostgreSQL they are one message.

    Each must return rows, and each parameter must be text. The first message of ``Database.run_pipelined`` begins the
    transaction as well. With ``commit``, for the last step of a transaction, the message commits it.
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
            results = [cursor.fetchall()]
            while len(results) < len(calls):
                cursor.nextset()
                results.append(cursor.fetchall())
            return results
    except _errors(tx) as error:
        _give_up(tx, "; ".join(statement.prepared.definition for statement, _ in calls), error)


def prepare_nothing(dialect: Dialect) -> None:
    """Stop preparing statements for the PostgreSQL engine of this dialect.

    Call it when a pooler gives each transaction another session, which lacks the prepared statements.
    """
    if dialect not in _pooled:
        logger.warning("a pooler stands before the database: nothing is prepared, statements go one by one")
        _pooled.add(dialect)


def prepares_nothing(dialect: Dialect) -> bool:
    """Return whether ``prepare_nothing`` was called for the engine of this dialect."""
    return dialect in _pooled


def _call(tx: Connection, raw: Any, statement: Prepared, parameters: Mapping[str, str]) -> bytes:
    """Return the EXECUTE command for this statement; prepare it first if this session has not."""
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
        # Let SQLAlchemy meet the lost connection, so that it gives up those of its pool.
        tx.exec_driver_sql("SELECT 1")
    raise exc.DBAPIError.instance(text, None, error, _errors(tx), dialect=dialect) from error


@cache
def _numbering() -> Dialect:
    from sqlalchemy.dialects.postgresql.base import PGDialect  # takes long to load: SQLite does without

    return PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
