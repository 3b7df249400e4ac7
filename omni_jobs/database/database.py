"""``Database``: transactions on SQLite or PostgreSQL, tried again after a fault that may pass; and the schema."""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TypeVar

from sqlalchemy import Connection, Engine, exc, make_url, select, text, update

from omni_jobs.database.clock import now
from omni_jobs.database.database_observer import DatabaseObserver
from omni_jobs.database.pool import close_pool
from omni_jobs.database.postgresql import PostgreSQL
from omni_jobs.database.seen_tables import SCHEMA, OldestBuildRow
from omni_jobs.database.sqlite import SQLite
from omni_jobs.database.statement import prepare_nothing
from omni_jobs.database.tables import WriteCheckRow
from omni_jobs.errors import ConfigError, DatabaseUnavailable
from omni_jobs.observers import Observers

logger = logging.getLogger(__name__)

T = TypeVar("T")

REVISION = "0025"
"""The schema's revision that this build needs: the last file in ``migrations`` (a test compares the two)."""

_REVISION = text("SELECT version_num FROM alembic_version")
_OLDEST_BUILD = text("SELECT revision, release FROM oldest_builds")
# A process that is stopped within it holds up no other: those write nothing while they see the row locked.
_WRITE_CHECK = (
    update(WriteCheckRow)
    .where(WriteCheckRow.id == select(WriteCheckRow.id).with_for_update(skip_locked=True).limit(1).scalar_subquery())
    .values(at=now())
)
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class Database:
    """A database and its pool of connections. Safe for threads, not across a fork."""

    def __init__(
        self,
        url: str,
        *,
        retry_for_s: float = 10.0,
        connections: int = 10,
        observers: Iterable[DatabaseObserver] = (),
    ) -> None:
        """Prepare the engine; it connects when it is first used.

        ``url`` is ``sqlite:////path/to/file`` or ``postgresql://…``. Raises ConfigError for any other.
        ``retry_for_s`` limits how long a transaction is tried again before DatabaseUnavailable is raised.
        """
        try:
            parsed = make_url(url)
        except (exc.ArgumentError, ValueError):  # ValueError: a port or an address that is none
            raise ConfigError("not a database URL", field="database_url") from None
        self._retry_for_s = retry_for_s
        self._observers = Observers(observers)
        name = parsed.get_backend_name()
        self._backend: SQLite | PostgreSQL
        if name not in ("sqlite", "postgresql", "postgres"):
            raise ConfigError(f"{name} is not supported: use sqlite or postgresql", field="database_url")
        try:
            self._backend = (SQLite if name == "sqlite" else PostgreSQL)(parsed, connections)
        except (exc.ArgumentError, ValueError):
            raise ConfigError("not a database URL", field="database_url") from None
        self._engine = self._backend.engine
        self.dialect: str = self._engine.dialect.name

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A context manager that yields the connection of a writing transaction.

        It commits at the block's end, and rolls back on an error, which passes as it is. ``run`` tries again.
        """
        with self._backend.writing.begin() as connection:
            yield connection

    def run(self, transaction: Callable[[Connection], T]) -> T:
        """Call ``transaction`` inside one writing transaction, commit, and return its result.

        After a deadlock, a lock wait or a lost connection ``transaction`` is called again. It must accept that its
        work is done already, because the connection may be lost after COMMIT was done and before its answer came.
        Raises DatabaseUnavailable when the fault lasts, the disk is full, the database's file or a table is gone, or no
        connection becomes free. Other errors pass as they are, SQLAlchemy's for wrong SQL.
        """
        return self._run(self._backend.writing, transaction)

    def read(self, query: Callable[[Connection], T]) -> T:
        """Call ``query`` in a transaction that reads one consistent state, and return its result.

        It is tried again, and raises DatabaseUnavailable, as ``run`` does.
        """
        return self._run(self._backend.reading, query)

    def _run(self, engine: Engine, function: Callable[[Connection], T]) -> T:
        def attempt() -> T:
            with engine.begin() as connection:
                result = function(connection)
                session = connection.info
            self._backend.check_kept(session)
            return result

        try:
            return self._persist(attempt, self._retry_for_s)
        except DatabaseUnavailable as error:
            self._observers.tell(DatabaseObserver.gave_up, error)
            raise

    def _persist(self, attempt: Callable[[], T], for_s: float) -> T:
        deadline = time.monotonic() + for_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return attempt()
            except exc.TimeoutError as error:  # every connection of the pool is in use
                raise DatabaseUnavailable("no database connection became free") from error
            except exc.DBAPIError as error:
                self._check_retryable(error)
                wait = pause * random.uniform(0.5, 1.5)  # noqa: S311 — spreads the rivals
                if time.monotonic() + wait > deadline:
                    raise DatabaseUnavailable("the database does not answer", because=str(error.orig)) from error
                logger.warning("database: %s; trying again in %.2f s", error.orig, wait)
                self._observers.tell(DatabaseObserver.retried, str(error.orig))
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _check_retryable(self, error: exc.DBAPIError) -> None:
        """Prepare another try of the transaction.

        Raises DatabaseUnavailable when the database must be mended first, or is not trusted, and ``error`` itself when
        the transaction is wrong.
        """
        if refused := self._backend.refusal(error):
            raise DatabaseUnavailable("the database's server is not trusted", because=refused) from error
        code = self._backend.error_code(error)
        if code.startswith(self._backend.stale_connections):
            close_pool(self._engine)
        if unusable := self._backend.unusable(error):
            raise unusable from error
        if code.startswith(self._backend.exhausted):
            raise DatabaseUnavailable("the database cannot go on", because=str(error.orig)) from error
        if code.startswith(self._backend.foreign_session):
            prepare_nothing(self._engine.dialect)
        elif not (error.connection_invalidated or code.startswith(self._backend.transient)):
            raise error

    def migrate(self, revision: str = REVISION, *, on_taken: Callable[[str], object] = lambda _: None) -> None:
        """Bring the schema to a revision, this build's or an earlier one, a transaction for each on the way.

        ``on_taken`` is called with the number of each that was made or undone. Several processes may call this at once,
        and one that was killed goes on where it was. It does nothing to the schema of a newer build on which this one
        may work. Raises DatabaseUnavailable, also for tables that are gone from a schema of this build, and ConfigError
        for the schema of a newer build on which this one may not work, and for an earlier revision than a newer one's.
        """
        if revision == REVISION and self.is_ahead():
            return
        from omni_jobs.database.migrations import take_step  # costs as much to import as everything else here

        with ExitStack() as opened:
            engine = opened.enter_context(self._backend.migrating())
            self._persist(lambda: opened.enter_context(self._backend.migrating_alone(engine)), self._retry_for_s)

            def attempt() -> str | None:
                with engine.connect() as connection:
                    taken = take_step(connection, revision)
                    session = connection.info
                self._backend.check_kept(session)
                return None if taken is None else taken.number

            try:
                while taken := self._persist(attempt, max(self._retry_for_s, self._backend.migration_locks_s)):
                    on_taken(taken)
            except DatabaseUnavailable as error:
                raise DatabaseUnavailable(
                    f"{error.message}. The migration stopped between two revisions, and no row is lost: mend the fault "
                    "and run omni-jobs migrate again, which goes on from there",
                    because=error.because,
                    lasts=error.lasts,
                ) from error
        if revision == REVISION:
            self.check()

    def let_run(self, url: str) -> None:
        """Let the role of this URL of PostgreSQL work with the rows of this database, and do nothing else.

        Call it after ``migrate``. Raises ConfigError for SQLite, whose rights are those of its file, for a URL without
        a role, for one of another database, and for a role that could change the schema; DatabaseUnavailable.
        """
        from omni_jobs.database.running_role import check_same_database, grant_rows, read_role, which_database

        role = read_role(url)
        if self.dialect != "postgresql":
            raise ConfigError("SQLite has no roles: leave it out", field="--runs-as")
        try:
            running = Database(url, retry_for_s=0)
        except ConfigError as error:
            raise ConfigError(error.message, field="--runs-as") from None
        ours, theirs = self.read(which_database), None
        with closing(running), suppress(DatabaseUnavailable):  # the role may not be there yet
            theirs = running.read(which_database)
        check_same_database(ours, self._engine.url, theirs, role)
        with ExitStack() as opened:
            engine = opened.enter_context(self._backend.migrating())
            self._persist(lambda: opened.enter_context(self._backend.migrating_alone(engine)), self._retry_for_s)

            def attempt() -> None:
                with engine.begin() as connection:
                    grant_rows(connection, role)

            self._persist(attempt, self._retry_for_s)

    def revision(self) -> str | None:
        """Return the schema's revision; None: the database is empty, or its file is not there.

        Raises DatabaseUnavailable.
        """
        if not self._backend.is_there():
            return None

        def query(tx: Connection) -> str | None:
            return tx.execute(_REVISION).scalar() if "alembic_version" in self.table_names(tx) else None

        return self.read(query)

    def is_ahead(self) -> bool:
        """Return whether the schema is of a newer build, which lets this one work on it.

        Raises DatabaseUnavailable, and ConfigError if it does not.
        """
        if not self._backend.is_there():
            return False

        def query(tx: Connection) -> tuple[str | None, str | None]:
            return self._schema(tx, self.table_names(tx))

        revision, reason = self.read(query)
        if reason is not None:
            raise ConfigError(reason, field="database_url")
        return revision is not None and revision > REVISION

    def _schema(self, tx: Connection, names: Collection[str]) -> tuple[str | None, str | None]:
        """Return the schema's revision, and why this build may not work on it, if a newer one made it."""
        revision: str | None = tx.execute(_REVISION).scalar() if "alembic_version" in names else None
        if revision is None or revision <= REVISION:
            return revision, None
        oldest = tx.execute(_OLDEST_BUILD).first() if OldestBuildRow.__tablename__ in names else None
        if oldest is None:
            by = "a newer version made it, or one from before the first release"
            return revision, f"the database's schema is {revision}, this build knows those up to {REVISION}: {by}"
        if oldest.revision <= REVISION:
            return revision, None
        return revision, (
            f"the database's schema is {revision}, on which builds work that know {oldest.revision} or newer, and this "
            f"one knows those up to {REVISION}: start one of omni-jobs {oldest.release} or newer"
        )

    def is_empty(self) -> bool:
        """Return whether there is no table, or on SQLite no file. Raises DatabaseUnavailable."""
        return not self._backend.is_there() or not self.read(self.table_names)

    def table_names(self, tx: Connection) -> set[str]:
        """Return the names of all tables."""
        return set(tx.execute(self._backend.table_names).scalars())

    def check(self) -> None:
        """Raise DatabaseUnavailable unless the database has this build's tables and, on PostgreSQL, takes writes.

        The schema of a newer build will do, if that lets this one work on it.
        """
        try:
            with self._backend.reading.begin() as connection:  # psycopg forgets what it has prepared with a rollback
                is_read_only = connection.execute(self._backend.is_read_only).scalar()
                names = self.table_names(connection)
                revision, reason = self._schema(connection, names)
        except exc.DBAPIError as error:
            if unusable := self._backend.unusable(error):
                raise unusable from error
            because = self._backend.refusal(error) or str(error.orig)
            raise DatabaseUnavailable("the database does not answer", because=because) from error
        except exc.TimeoutError as error:
            raise DatabaseUnavailable("no database connection became free") from error
        if is_read_only:
            close_pool(self._engine)
            raise DatabaseUnavailable("the database takes no writes: it is a replica, or set to be read-only")
        if reason is not None:
            raise DatabaseUnavailable(reason)
        if revision is not None and revision > REVISION:
            return  # it may lack tables of which this build makes no use any longer
        if revision != REVISION:
            raise DatabaseUnavailable(
                f"the database's schema is {revision or 'empty'}, this build needs {REVISION}: run omni-jobs migrate"
            )
        if lacking := sorted(SCHEMA.tables.keys() - names):
            raise DatabaseUnavailable(f"the database lacks the table {lacking[0]}: restore it from a backup")

    def check_writes(self) -> None:
        """Write a row. Raises DatabaseUnavailable as ``run`` does, and waits as long as other writers do."""
        self.run(lambda tx: tx.execute(_WRITE_CHECK))

    def close(self) -> None:
        """Close the connections of the pool. Those in use are closed when they come back."""
        close_pool(self._engine)
