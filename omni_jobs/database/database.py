"""The database: SQLite by default, PostgreSQL by URL, the same statements on both.

run(transaction)    writes: one transaction, tried again while the trouble passes by itself
run_in_messages(…)  the same in fewer round trips
read(query)         reads one consistent state
now()               the database's clock, as an expression
migrate(), check()  the schema
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Double, Engine, create_engine, event, exc, inspect, make_url, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from omni_jobs.database.checkpointer import BACKSTOP_PAGES, Checkpointer
from omni_jobs.database.statement import Statement, prepare_nothing, prepares_nothing
from omni_jobs.errors import ConfigError, DatabaseUnavailable

if TYPE_CHECKING:
    import psycopg  # SQLAlchemy imports it, where PostgreSQL is used

__all__ = ["REVISION", "Database", "is_transient", "now"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

REVISION = "0008"
"""What the schema must be: the last file in ``migrations`` (a test compares)."""

_REVISION = text("SELECT version_num FROM alembic_version")
_TAKES_NO_WRITES = text("SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean")
_WRITE = Statement(text("BEGIN"))  # of PostgreSQL
_READ = Statement(text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

# For each of these that Python's module binds it looks for an adapter, and by way of two exceptions finds none.
sqlite3.register_adapter(type(None), lambda none: none)
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(bool, int)

_CACHE_KIB = 16_000  # SQLite: of each connection; the upper pages of every index on a million jobs
_LOCK_S = 10.0  # SQLite: how long a writer waits for the others
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.0002, 0.0005

# SQLSTATE classes and codes after which the same transaction may well succeed.
_TRANSIENT_CLASSES = ("08", "40")  # connection trouble; serialization failure, deadlock
_TRANSIENT_CODES = frozenset(
    {
        "25P03",  # idle_in_transaction_session_timeout
        "53300",  # too many connections
        "55P03",  # lock_timeout
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # starting up
    }
)
_OTHER_SESSION_CODES = frozenset({"26000", "42P05"})  # a prepared statement is not there, or there already
# read_only_sql_transaction: after a failover this session may lead to a replica. A new one finds the primary.
_OTHER_SERVER_CODES = frozenset({"25006"})
# After these it may when somebody has made room, mended the disk or found what holds the server up: not worth
# trying again at once. Disk full, out of memory, input/output error, statement_timeout.
_AT_ITS_END_CODES = frozenset({"53100", "53200", "58030", "57014"})
_AT_ITS_END_NAMES = (
    *("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM"),
    *("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CORRUPT", "SQLITE_NOTADB"),
)
_OTHER_FILE_NAMES = ("SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT")  # it may have been replaced, or mended


class now(FunctionElement[float]):
    """The database's clock: seconds since 1970 UTC, the same all through one statement."""

    type = Double()
    inherit_cache = True
    name = "now"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **options: Any) -> str:
    # unixepoch('subsec') is younger than Debian 12's SQLite.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: Any, **options: Any) -> str:
    # Not clock_timestamp(): no index serves a comparison with a volatile function.
    return "extract(epoch from statement_timestamp())::double precision"


def is_transient(error: exc.DBAPIError) -> bool:
    """Whether the same transaction may succeed when tried again."""
    if error.connection_invalidated:
        return True
    original = error.orig
    if isinstance(original, sqlite3.Error):
        name = getattr(original, "sqlite_errorname", "")
        return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"))
    sqlstate = _sqlstate(original)
    if sqlstate is None:  # no answer from the server
        return isinstance(error, exc.OperationalError | exc.InterfaceError)
    return (
        sqlstate.startswith(_TRANSIENT_CLASSES)
        or sqlstate in _TRANSIENT_CODES | _OTHER_SESSION_CODES | _OTHER_SERVER_CODES
    )


def _is_at_its_end(error: exc.DBAPIError) -> bool:
    """Whether the server or its disk is at its end, rather than the statement wrong."""
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorname", "").startswith(_AT_ITS_END_NAMES)
    return _sqlstate(original) in _AT_ITS_END_CODES


def _wants_new_connections(error: exc.DBAPIError) -> bool:
    """Whether the connections there are lead to a replica, or to a file that is no longer the database."""
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorname", "").startswith(_OTHER_FILE_NAMES)
    return _sqlstate(original) in _OTHER_SERVER_CODES


def _sqlstate(error: BaseException | None) -> str | None:
    """Of an error of psycopg that the server has sent."""
    return getattr(error, "sqlstate", None)


class Database:
    """One engine with its connections; safe for threads, not across a fork."""

    def __init__(self, url: str, *, retry_for_s: float = 10.0, connections: int = 10) -> None:
        """``url``: ``sqlite:////path/to/file`` or ``postgresql://…``. Raises ConfigError for others.

        ``retry_for_s`` bounds how long ``run`` and ``read`` try again before DatabaseUnavailable.
        """
        try:
            parsed = make_url(url)
        except exc.ArgumentError:
            raise ConfigError("not a database URL", field="database_url") from None
        self._retry_for_s = retry_for_s
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise ConfigError("SQLite needs a file: several processes share it", field="database_url")
            self._file: Path | None = Path(parsed.database)
            self._checkpointer: Checkpointer | None = Checkpointer(self._file)
            self._engine = _sqlite_engine(parsed.set(drivername="sqlite"), connections, self._checkpointer)
        elif backend in ("postgresql", "postgres"):
            self._file = None
            self._checkpointer = None
            self._engine = _postgresql_engine(parsed.set(drivername="postgresql+psycopg"), connections)
        else:
            raise ConfigError(f"{backend} is not supported: use sqlite or postgresql", field="database_url")
        self.dialect: str = self._engine.dialect.name
        self._writing = self._engine.execution_options(omni_jobs_writing=True)
        self._reading: Engine = self._engine
        self._in_messages = self._writing
        if self.dialect == "postgresql":
            self._reading = self._engine.execution_options(omni_jobs_begin=_READ)
            self._in_messages = self._engine.execution_options(omni_jobs_begin=None)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One writing transaction, tried once: committed at the end, rolled back on an error."""
        with self._writing.begin() as connection:
            yield connection

    def run(self, transaction: Callable[[Connection], T]) -> T:
        """Call ``transaction`` inside one writing transaction and commit.

        After a deadlock, a lock wait or a lost connection the whole of it is called again.
        The connection may be lost when COMMIT was done but its reply was not read, so
        ``transaction`` must accept to find its own work done already.
        Raises DatabaseUnavailable when the trouble lasts.
        """
        return self._persist(self._writing, transaction)

    def run_in_messages(self, transaction: Callable[[Connection], T]) -> T:
        """``run`` for what is one statement alone, or begins with ``omni_jobs.database.statement.in_one_message``.

        PostgreSQL begins it with the statement then, a round trip less.
        """
        return self._persist(self._in_messages, transaction)

    def read(self, query: Callable[[Connection], T]) -> T:
        """Call ``query`` on one consistent state. Raises DatabaseUnavailable."""
        return self._persist(self._reading, query)

    def _persist(self, engine: Engine, function: Callable[[Connection], T]) -> T:
        deadline = time.monotonic() + self._retry_for_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                with engine.begin() as connection:
                    return function(connection)
            except exc.TimeoutError as error:  # every connection of the pool is in use
                raise DatabaseUnavailable("no database connection became free") from error
            except exc.DBAPIError as error:
                if _wants_new_connections(error):
                    self._engine.dispose()  # those in use are closed when they come back
                if _is_at_its_end(error):
                    raise DatabaseUnavailable(f"the database cannot go on: {error.orig}") from error
                if not is_transient(error):
                    raise
                if _sqlstate(error.orig) in _OTHER_SESSION_CODES:
                    prepare_nothing(self._engine.dialect)
                wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 — spreads the rivals
                if time.monotonic() + wait > deadline:
                    raise DatabaseUnavailable(f"the database does not answer: {error.orig}") from error
                logger.warning("database: %s; trying again in %.2f s", error.orig, wait)
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def migrate(self) -> None:
        """Bring the schema to this build's revision; safe to call from several processes at once."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._migrating() as engine:
            self._persist(engine, self._upgrade)

    @contextmanager
    def _migrating(self) -> Iterator[Engine]:
        """SQLite copies a table to change it, and drops the old one: what refers to its rows must not go with them."""
        if self._checkpointer is None:
            yield self._writing
            return
        engine = _sqlite_engine(self._engine.url, 1, self._checkpointer, foreign_keys=False)
        try:
            yield engine.execution_options(omni_jobs_writing=True)
        finally:
            engine.dispose()

    def _upgrade(self, connection: Connection) -> None:
        if self.dialect == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))  # a migration takes as long as it takes
            connection.execute(text("SELECT pg_advisory_xact_lock(7305818263117)"))
        from omni_jobs.database.migrations import upgrade  # costs as much to import as everything else here

        upgrade(connection)

    def check(self) -> None:
        """Whether the database answers, takes writes and has this build's schema. Raises DatabaseUnavailable."""
        try:
            with self._reading.connect() as connection:
                takes_no_writes = self.dialect == "postgresql" and connection.execute(_TAKES_NO_WRITES).scalar()
                has_any = inspect(connection).has_table("alembic_version")
                found = connection.execute(_REVISION).scalar() if has_any else None
        except (exc.DBAPIError, exc.TimeoutError) as error:
            raise DatabaseUnavailable(f"the database does not answer: {error}") from error
        if takes_no_writes:
            self._engine.dispose()
            raise DatabaseUnavailable("the database takes no writes: it is a replica, or set to be read-only")
        if found != REVISION:
            raise DatabaseUnavailable(
                f"the database's schema is {found or 'empty'}, this build needs {REVISION}: run omni-jobs migrate"
            )

    def close(self) -> None:
        """Close all connections."""
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._engine.dispose()


def _sqlite_engine(url: Any, connections: int, checkpointer: Checkpointer, *, foreign_keys: bool = True) -> Engine:
    engine = create_engine(url, pool_size=connections, connect_args={"timeout": _LOCK_S})

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # BEGIN is ours: the driver's comes too late for BEGIN IMMEDIATE
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        connection.execute(f"PRAGMA wal_autocheckpoint={BACKSTOP_PAGES}")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would find the file changed meanwhile.
        if connection.get_execution_options().get("omni_jobs_writing", False):
            _take_turn(connection)
        else:
            connection.exec_driver_sql("BEGIN")

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if connection.get_execution_options().get("omni_jobs_writing", False):
            checkpointer.note_commit()

    return engine


def _take_turn(connection: Connection) -> None:
    """``BEGIN IMMEDIATE``, asked for every fraction of a millisecond while another writes.

    SQLite itself sleeps up to a tenth of a second between two looks, while the lock is
    held for a few milliseconds: under load writers would mostly sleep.
    """
    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + _LOCK_S
    pause = _SHORTEST_LOOK_S
    raw.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                raw.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    break
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 — spreads the rivals
            pause = min(pause * 1.2, _LONGEST_LOOK_S)
    finally:
        raw.execute(f"PRAGMA busy_timeout = {round(_LOCK_S * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # its error is SQLAlchemy's


def _postgresql_engine(url: Any, connections: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections,
        isolation_level="AUTOCOMMIT",  # BEGIN is ours: psycopg's takes a round trip of its own
        connect_args={
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,  # ms; a cable that is pulled under a statement
            "application_name": "omni-jobs",
            "client_encoding": "utf8",
        },
    )

    @event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], record: object) -> None:
        # A process stopped in the middle of a transaction must not hold its locks for ever.
        connection.execute("SET idle_in_transaction_session_timeout = '15s'")
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SET statement_timeout = '60s'")
        # The server keeps the plans of prepared statements: one made while a table was small would walk all
        # of it when it is large. Every statement here has its index; those that count have nothing to gain.
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET jit = off")  # what is forbidden counts as dear, which would be compiled

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if prepares_nothing(engine.dialect):
            raw: Any = connection.connection.dbapi_connection
            raw.prepare_threshold = None
        statement: Statement | None = connection.get_execution_options().get("omni_jobs_begin", _WRITE)
        if statement is not None:
            statement.run(connection, {})

    return engine
