"""SQLite: SQLAlchemy's engine for it, how its writers take turns, and the meaning of its errors."""

import os
import random
import sqlite3
import time
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, text

from omni_jobs.database.pool import close_pool
from omni_jobs.errors import ConfigError, DatabaseUnavailable

_CACHE_KIB = 16_000  # of each connection: room for the upper pages of every index on a million jobs
_CHECKPOINT_PAGES = 4_000  # 16 MB of log: with more pages fewer are copied twice, with fewer a commit waits less
_LOCK_S = 10.0  # how long a writer waits for the other writers
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.0005
_FILES = "omni_jobs_files"  # the key of a connection's _Files


class _Files(NamedTuple):
    """The files that a connection has opened, or those that have their names: device and inode; None: there is none."""

    database: tuple[int, int] | None
    log: tuple[int, int] | None  # what was committed, and is not in the database's file yet
    log_index: tuple[int, int] | None  # by which processes agree


class SQLite:
    """What ``Database`` needs for SQLite, a file that processes of one host share: the engine, and its error codes."""

    # Beginnings of error codes, by what Database does after them.
    transient = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
    # The file may have been replaced, mended or made writable: another connection may find it so.
    stale_connections = ("SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT")
    exhausted = (
        *("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_PERM"),
        "SQLITE_ERROR: no such table",  # an empty file was put in its place
        *stale_connections,
    )
    foreign_session = ()  # no pooler stands before a file
    is_read_only = text("SELECT false")  # a file that cannot be written shows it with the first write
    table_names = text("SELECT name FROM sqlite_master WHERE type = 'table'")
    migration_locks_s = 0.0  # no longer than any other transaction waits

    def __init__(self, url: URL, connections: int) -> None:
        """Prepare an engine that keeps at most ``connections`` connections, and opens up to ten more.

        Raises ConfigError when the URL names no file, because a database in memory is not shared.
        """
        if not url.database or url.database == ":memory:":
            raise ConfigError("SQLite needs a file: several processes share it", field="database_url")
        self._file = Path(url.database).absolute()
        self._url = url.set(drivername="sqlite")
        self.engine = _engine(self._url, self._file, connections)
        self.writing = self.engine.execution_options(omni_jobs_writing=True)
        self.reading = self.engine

    def is_there(self) -> bool:
        """Return whether there is a database to connect to, or an error to tell."""
        return not _is_gone(self._file)

    @contextmanager
    def migrating(self) -> Iterator[Engine]:
        """A context manager that creates the directory and yields an engine for migrations, which creates the file.

        No other engine creates it, because an empty database would take the place of one that was taken away.
        The engine's foreign keys are off, because a migration copies a table and drops the old one, and the rows
        that refer to the old one must stay.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = _engine(self._url, self._file, 1, mode="rwc", foreign_keys=False)
        try:
            yield engine.execution_options(omni_jobs_writing=True)
        finally:
            close_pool(engine)

    def migrating_alone(self, engine: Engine) -> AbstractContextManager[None]:
        """Return a context manager that does nothing: each revision's transaction holds the file's write lock."""
        return nullcontext()

    def check_kept(self, session: MutableMapping[str, Any]) -> None:
        """Raise DatabaseUnavailable unless what a connection has committed lies in the file of its name.

        ``session`` is the ``info`` of the connection. A file that was removed is written as if nothing had happened,
        and lost with the last process that has it open.
        """
        _check_files(self.engine, self._file, session)

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Return None: no server has a certificate."""
        return None

    def unusable(self, error: exc.DBAPIError) -> DatabaseUnavailable | None:
        """Return what is wrong with the file, if it has to be mended first; None for a trouble that may pass."""
        code = self.error_code(error)
        message: str | None = None
        if code.startswith("SQLITE_NOTADB"):
            message = "the database's file is not a database of SQLite"
        elif code.startswith("SQLITE_CORRUPT"):
            message = "the database's file is damaged (disk image is malformed): restore it from a backup"
        elif code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            message = _what_forbids(self._file)
        return None if message is None else DatabaseUnavailable(message, lasts=True, because=str(self._file))

    def error_code(self, error: exc.DBAPIError) -> str:
        """Return the name of SQLite's error code and its message; "" when the error is not SQLite's."""
        name = getattr(error.orig, "sqlite_errorname", "")
        return f"{name}: {error.orig}" if name else ""


def _engine(
    url: URL, file: Path, connections: int, *, mode: Literal["rw", "rwc"] = "rw", foreign_keys: bool = True
) -> Engine:
    def connect() -> sqlite3.Connection:
        try:
            name = f"file:{quote(os.fsencode(file))}?mode={mode}"
            return sqlite3.connect(name, uri=True, timeout=_LOCK_S, check_same_thread=False)
        except sqlite3.OperationalError:
            if mode == "rw" and _is_gone(file):
                raise _gone(file) from None
            raise

    engine = create_engine(url, pool_size=connections, creator=connect)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: the driver's comes too late for BEGIN IMMEDIATE
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.execute("PRAGMA schema_version")  # opens the log
        record.info[_FILES] = _files(file)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would find the file changed meanwhile.
        if connection.get_execution_options().get("omni_jobs_writing", False):
            _begin_immediate(connection)
        else:
            connection.exec_driver_sql("BEGIN")
        _check_files(engine, file, connection.info)

    return engine


def _files(file: Path) -> _Files:
    return _Files(_identity(file), _identity(f"{file}-wal"), _identity(f"{file}-shm"))


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _is_gone(file: Path) -> bool:
    try:
        return _identity(file) is None
    except OSError:  # a directory that this user may not enter: it may be there
        return False


def _what_forbids(file: Path) -> str | None:
    """Return why this user cannot open or write the file; None where its rights allow both."""
    if os.path.isdir(file):
        return "the database's file is a directory"
    if os.path.exists(file) and not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        return "this user may not read and write the database's file"
    if os.path.exists(file.parent) and not os.access(file.parent, os.W_OK | os.X_OK, effective_ids=True):
        return "this user may not write into the directory of the database's file, where SQLite keeps its log"
    return None


def _check_files(engine: Engine, file: Path, session: MutableMapping[str, Any]) -> None:
    """Raise DatabaseUnavailable unless the files that a connection opened still have their names."""
    opened: _Files = session[_FILES]
    named = _files(file)
    if named == opened:
        return
    if named.database is None:
        raise _gone(file)
    if named.database != opened.database:
        close_pool(engine)  # the next connection opens the other file
        raise DatabaseUnavailable("the database's file was replaced while it was open", because=str(file))
    raise DatabaseUnavailable(
        "a file beside the database's (-wal, -shm) was removed while it was open: stop all processes of omni-jobs, the "
        "last of which saves what is there, and start them again",
        because=str(file),
    )


def _gone(file: Path) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "the database's file is not there: put it back, or run omni-jobs migrate for a new, empty one",
        because=str(file),
    )


def _begin_immediate(connection: Connection) -> None:
    """Begin a transaction with the write lock; while another writer has it, try every fraction of a millisecond.

    SQLite's own wait sleeps up to a tenth of a second between two tries. The lock is held for a few
    milliseconds, so that under load the writers would mostly sleep.
    """
    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + _LOCK_S
    pause = _SHORTEST_PAUSE_S
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
            pause = min(pause * 1.2, _LONGEST_PAUSE_S)
    finally:
        raw.execute(f"PRAGMA busy_timeout = {round(_LOCK_S * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # fails with SQLAlchemy's error, or succeeds late
