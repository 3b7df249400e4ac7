"""Statements by name: SQL in a file beside the module, executed by the database's own driver.

    sql = Statements(__file__)    the statements of ``claim.sql`` for the module ``claim.py``
    sql["claim_next"]             a ``Statement``, for ``rows``
    sql.bulk("set_job", "id at")  a ``BulkStatement``, which runs once for each of many rows
    execute_pipelined             execute several statements in their order; on PostgreSQL in one round trip

The statements that run for every job are of this kind, because SQLAlchemy's own execution doubles the client's cost,
and every round trip costs both sides more than most statements (docs/performance.md). Values are not converted:
parameters and rows hold the driver's own types, and JSON is text. SQLite runs a prepared statement for each row of a
bulk faster than any statement for all. PostgreSQL gets all rows as one parameter of JSON, because arrays cost the
client three times as much.

In a file, a line ``-- NAME: what it does`` names the text below it. Below a line ``-- postgresql`` or ``-- sqlite``
stands that database's text; a text without such lines is for both. Other lines that begin with ``--`` are comments.
``{name}`` stands for the text of an earlier one of the file, or of ``words.sql``; ``{in name}`` for "is one of the rows
of" that query, as each database reads it without a scan. Parameters are text. ``:ids`` is a JSON list. In bulk,
PostgreSQL has ``{rows}``, a table, and ``{keys}`` or ``{key_names}``, "is one of the rows' first values"; SQLite has a
row's values as parameters, of their own types.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, Row, TextClause, exc, text

from omni_jobs.database.tables import encode_json

logger = logging.getLogger(__name__)

_NAME = re.compile(r"^-- ([a-z]\w*): .+\n", re.MULTILINE)
_SLOT = re.compile(r"\{(in )?(\w+)\}")
_DIALECT = re.compile(r"^-- (postgresql|sqlite)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_WORDS = Path(__file__).with_name("words.sql")
AnyRow = Row[*tuple[Any, ...]]
Rows = list[tuple[Any, ...]]
_BEGIN = "omni_jobs_begin"  # the key of a connection's BEGIN that has not been sent
_pooled: WeakSet[Dialect] = WeakSet()  # the dialects of engines behind a pooler


class _Compiled(NamedTuple):
    text: str
    parameters: tuple[str, ...]  # their names in order, where the driver takes them so


def words(dialect: str) -> Mapping[str, str]:
    """Return the texts of ``words.sql`` for a dialect by name."""
    return texts(_WORDS, dialect)


@cache
def texts(path: Path, dialect: str) -> Mapping[str, str]:
    """Return the texts of a file for a dialect by name, with the words. Raises KeyError for an unknown ``{name}``."""
    known = dict(words(dialect)) if path != _WORDS else {}
    is_one_of = "= ANY (ARRAY({}))" if dialect == "postgresql" else "IN ({})"

    def fill(slot: re.Match[str]) -> str:
        return (is_one_of if slot[1] else "{}").format(known[slot[2]])

    _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        of_both, *of_one = _DIALECT.split(body)
        text = dict(zip(of_one[::2], of_one[1::2], strict=True)).get(dialect) if of_one else of_both
        if text is not None:
            known[name] = _SLOT.sub(fill, _COMMENT.sub("", text)).strip()
    return known


class Statement:
    """An SQL statement for both databases, compiled once for each and executed by the database's own driver.

    The driver's errors are raised as SQLAlchemy's, which ``Database.run`` knows. ``Statements`` has those of the files.
    """

    def __init__(self, of_dialect: Callable[[str], TextClause]) -> None:
        """Hold the function that returns the statement's text for a dialect's name."""
        self._of_dialect = of_dialect
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, tx: Connection, parameters: Mapping[str, Any]) -> Rows:
        """Execute the statement with parameters by name, and return its rows."""
        [cursor] = _execute(tx, [(self, parameters)])
        try:
            return cursor.fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()

    def compiled(self, dialect: Dialect) -> _Compiled:
        """Return the statement's text for the driver of this dialect, and the names of its parameters in order."""
        found = self._compiled.get(dialect.name)
        if found is None:
            compiled: Any = self._of_dialect(dialect.name).compile(dialect=dialect)
            found = _Compiled(str(compiled), tuple(compiled.positiontup or ()))
            self._compiled[dialect.name] = found
        return found


BoundStatement = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters by name."""


class BulkStatement:
    """A statement that is run for many rows at once. ``Statements.bulk`` makes it."""

    def __init__(self, statement: Statement, columns: Sequence[str]) -> None:
        """Hold the names of a row's values, in their order. The first is the key by which rows are found."""
        self._statement = statement
        self._columns = columns

    def run(self, tx: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run the statement for each of these rows, and return how many rows of the table changed."""
        if not rows:
            return 0
        if tx.dialect.name == "sqlite":
            sql, in_order = self._of_sqlite(tx.dialect)
            return _execute_many_on_sqlite(tx, sql, list(map(in_order, rows)))
        of_all, parameters = self.call(rows)
        return len(of_all.rows(tx, parameters))

    def call(self, rows: Sequence[tuple[Any, ...]]) -> BoundStatement:
        """Return PostgreSQL's statement, not run, with its parameters; it returns a row for each row that changed."""
        # A value that is left out is NULL as well, and need not be written or read. bytes are written in hex.
        items = [
            {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in zip(self._columns, row, strict=True)
                if value is not None
            }
            for row in rows
        ]
        return self._statement, {"rows": encode_json(items), "keys": listed(row[0] for row in rows)}

    def _of_sqlite(self, dialect: Dialect) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        """Return SQLite's statement, and the function that picks its values out of a row."""
        compiled = self._statement.compiled(dialect)
        taken = [self._columns.index(name) for name in compiled.parameters]
        return compiled.text, itemgetter(*taken) if len(taken) > 1 else itemgetter(slice(taken[0], taken[0] + 1))


class Statements:
    """The statements of a module, which stand beside it in a file of its name with the suffix ``.sql``."""

    def __init__(self, module: str) -> None:
        """Hold the path of the module (``__file__``). The file is read with the first execution of a statement."""
        self._path = Path(module).with_suffix(".sql")
        self._statements: dict[str, Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        """Return the statement of this name. Its first execution raises KeyError if the file has none."""
        if name not in self._statements:
            self._statements[name] = Statement(lambda dialect: text(texts(self._path, dialect)[name]))
        return self._statements[name]

    def bulk(self, name: str, columns: str) -> BulkStatement:
        """Return the bulk statement of this name, whose rows have values of these names, in this order."""
        return BulkStatement(self[name], columns.split())


def listed(values: Iterable[Any]) -> str:
    """Return numbers or strings as the text that statements take for a list."""
    return encode_json(list(values))


def run_all(tx: Connection, work: Sequence[tuple[BulkStatement, Sequence[tuple[Any, ...]]]], *, exact: int = 0) -> None:
    """Run several bulk statements, each for its rows; on PostgreSQL in one round trip.

    Raises RuntimeError unless each of the first ``exact`` statements changes as many rows as it is given.
    """
    if tx.dialect.name == "sqlite":
        changed = [statement.run(tx, rows) for statement, rows in work]
    else:
        results = iter(execute_pipelined(tx, [statement.call(rows) for statement, rows in work if rows]))
        changed = [len(next(results)) if rows else 0 for _, rows in work]
    if any(count != len(rows) for count, (_, rows) in zip(changed[:exact], work[:exact], strict=True)):
        raise RuntimeError("rows have changed that this transaction has locked")


def execute_pipelined(tx: Connection, calls: Sequence[BoundStatement]) -> list[Rows]:
    """Execute statements in their order, and return the rows of each. On PostgreSQL that is one round trip.

    Each must return rows.
    """
    if tx.dialect.name == "sqlite" or not calls:
        return [statement.rows(tx, parameters) for statement, parameters in calls]
    return [cursor.fetchall() for cursor in _execute(tx, calls)]


def begin_with_first(tx: Connection, begin: Statement) -> None:
    """Let PostgreSQL's ``BEGIN`` go out with the transaction's first statement, in its round trip."""
    tx.info[_BEGIN] = begin


def begin_now(tx: Connection) -> None:
    """Send a ``BEGIN`` that still waits for the first statement, because SQLAlchemy executes it."""
    if _BEGIN in tx.info:
        _execute(tx, [])


def _execute(tx: Connection, calls: Sequence[BoundStatement]) -> list[Any]:
    """Execute statements with the database's own driver, and return its cursors."""
    try:
        if tx.dialect.name == "sqlite":
            return [_execute_on_sqlite(tx, *call) for call in calls]
        return _execute_on_postgresql(tx, calls)
    except _errors(tx) as error:
        _give_up(tx, "; ".join(statement.compiled(tx.dialect).text for statement, _ in calls), error)


def _execute_on_sqlite(tx: Connection, statement: Statement, parameters: Mapping[str, Any]) -> Any:
    compiled = statement.compiled(tx.dialect)
    cursor: Any = tx.connection.cursor()
    return cursor.execute(compiled.text, [parameters[each] for each in compiled.parameters])


def _execute_many_on_sqlite(tx: Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Execute a statement for each of these rows, and return how many rows of the table changed."""
    cursor: Any = tx.connection.cursor()
    try:
        return cursor.executemany(sql, rows).rowcount  # type: ignore[no-any-return]
    except _errors(tx) as error:
        _give_up(tx, sql, error)
    finally:
        cursor.close()


def _execute_on_postgresql(tx: Connection, calls: Sequence[BoundStatement]) -> list[Any]:
    fairy = tx.connection
    raw: Any = fairy.dbapi_connection
    begin: Statement | None = fairy.info.pop(_BEGIN, None)
    texts = [(statement.compiled(tx.dialect).text, parameters) for statement, parameters in calls]
    if begin is None and len(texts) == 1:
        return [raw.execute(*texts[0], prepare=True)]
    with raw.pipeline():
        if begin is not None:
            raw.execute(begin.compiled(tx.dialect).text, prepare=True)
        return [raw.execute(*each, prepare=True) for each in texts]


def prepare_nothing(dialect: Dialect) -> None:
    """Stop preparing statements for the PostgreSQL engine of this dialect.

    Call it when a pooler gives each transaction another session, which has other prepared statements, or none.
    """
    if dialect not in _pooled:
        logger.warning("a pooler stands before the database: nothing is prepared")
        _pooled.add(dialect)


def prepares_nothing(dialect: Dialect) -> bool:
    """Return whether ``prepare_nothing`` was called for the engine of this dialect."""
    return dialect in _pooled


def _errors(tx: Connection) -> Any:
    return tx.dialect.loaded_dbapi.Error


def _give_up(tx: Connection, text: str, error: Exception) -> NoReturn:
    """Raise the driver's error as SQLAlchemy's."""
    dialect: Any = tx.dialect
    if dialect.is_disconnect(error, tx.connection.dbapi_connection, None):
        # Let SQLAlchemy meet the lost connection, so that it gives up those of its pool.
        tx.exec_driver_sql("SELECT 1")
    raise exc.DBAPIError.instance(text, None, error, _errors(tx), dialect=dialect) from error
