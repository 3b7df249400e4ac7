"""PostgreSQL: SQLAlchemy's engine for it, how its transactions begin, and the meaning of its errors."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, text
from sqlalchemy.pool import NullPool

from omni_jobs.database.statement import Statement, begin_now, begin_with_first, prepare_nothing, prepares_nothing
from omni_jobs.errors import ConfigError, DatabaseUnavailable
from omni_jobs.servers import check_host
from omni_jobs.tls.certificates import handshake, refusal

if TYPE_CHECKING:
    import psycopg  # SQLAlchemy imports it, where PostgreSQL is used

_SESSION = """
-- A process that is stopped in the middle of a transaction must not hold its locks for ever.
SET idle_in_transaction_session_timeout = '15s';
SET lock_timeout = '10s';
SET statement_timeout = '60s';
-- The server keeps the plans of prepared statements, and a plan made while a table was small would scan all of it when
-- it is large. Every statement here has its index; those that count have nothing to gain.
SET enable_seqscan = off;
SET jit = off;  -- a plan with a forbidden scan counts as dear, and would be compiled
"""
_MIGRATING_SESSION = """
SET lock_timeout = '900ms';
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
"""
_TAKE_SCHEMA = text("SELECT pg_try_advisory_xact_lock(7305818263117)")
_ASK_AGAIN_S = 0.1
_LONGEST_OTHER_S = 600.0
_CONNECT: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms; a cable that is pulled under a statement
    "application_name": "omni-jobs",
    "client_encoding": "utf8",
}
SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
"""What a client sends first that wants TLS; the server answers it by a letter."""
_SETTING: Final = "OMNI_JOBS_DATABASE_URL"
_TRUST: Final = f"sslrootcert in {_SETTING} (…?sslmode=verify-full&sslrootcert=/path/to/ca.pem)"
_OTHER_NAME: Final = re.compile(r"server certificate for .* does not match host name \"[^\"]*\"")
_BEGIN_WRITING = Statement(lambda _: text("BEGIN"))
_BEGIN_READING = Statement(lambda _: text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))


class PostgreSQL:
    """What ``Database`` needs for PostgreSQL: the engine, and what to do after which error codes."""

    # Beginnings of error codes, by what Database does after them.
    # read_only_sql_transaction: after a failover this session may lead to a replica. A new one finds the primary.
    stale_connections = ("25006",)
    transient = (
        *stale_connections,
        *("08", "40"),  # connection lost; serialization failure, deadlock
        "25P03",  # idle_in_transaction_session_timeout
        "53300",  # too many connections
        "55P03",  # lock_timeout
        *("57P01", "57P02", "57P03"),  # admin shutdown, crash shutdown, starting up
    )
    # Disk full, out of memory, input/output error, statement_timeout, no such table or schema, no right to it: somebody
    # must make room or mend the server.
    exhausted = ("53100", "53200", "58030", "57014", "42P01", "3F000", "42501")
    foreign_session = ("26000", "42P05")  # a prepared statement is not there, or there already
    is_read_only = text("SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean")
    table_names = text(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid) "
        "AND relnamespace <> 'pg_catalog'::regnamespace"
    )
    migration_locks_s = 120.0  # how long a revision tries again to get the locks that it needs

    def __init__(self, url: URL, connections: int) -> None:
        """Prepare an engine that keeps at most ``connections`` connections, and opens up to ten more.

        It connects when it is first used. Raises ConfigError for a host, a port or an option that can be none.
        """
        _check(url)
        self._url = url.set(drivername="postgresql+psycopg")
        self.engine = _engine(self._url, connections)
        self.writing = self.engine
        self.reading = self.engine.execution_options(omni_jobs_begin=_BEGIN_READING)

    def is_there(self) -> bool:
        """Return True: whether it is there, the server says."""
        return True

    @contextmanager
    def migrating(self) -> Iterator[Engine]:
        """A context manager that yields an engine for migrations.

        Who waits for a lock holds up all that come after it. So a migration gives up a wait in less than a second, and
        is tried again.
        """
        engine = create_engine(self._url, poolclass=NullPool, connect_args={**_CONNECT, "prepare_threshold": None})

        @event.listens_for(engine, "connect")
        def configure(connection: psycopg.Connection[Any], record: object) -> None:
            connection.execute(_MIGRATING_SESSION)
            connection.commit()

        yield engine

    @contextmanager
    def migrating_alone(self, engine: Engine) -> Iterator[None]:
        """A context manager in which no other process migrates. Raises DatabaseUnavailable when one does for long.

        It asks again instead of waiting, because an index that is being built waits for whoever waits. The transaction
        that holds the lock does nothing else, and so has no snapshot, for which such an index would wait as well.
        """
        deadline = time.monotonic() + _LONGEST_OTHER_S
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as guard:
            while not guard.execute(_TAKE_SCHEMA).scalar():
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable("another process has been migrating the database for ten minutes")
                time.sleep(_ASK_AGAIN_S)
            yield

    def check_kept(self, session: MutableMapping[str, Any]) -> None:
        """Do nothing: the server answers for what it has committed."""

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Return why this host refused the server's TLS, and what to do; None if the error is another.

        libpq says of an unknown authority and of an expired certificate the same; so the handshake is made once more.
        """
        said = str(error.orig)
        place = URL.create("postgresql", host=self._url.host, port=self._url.port, database=self._url.database)
        if other := _OTHER_NAME.search(said):
            where = f"write the name that it has into {_SETTING}"
            return f"the certificate of {place} is refused: it is for another host ({other[0]}); {where}"
        if "certificate verify failed" in said:
            connection = getattr(error.orig, "pgconn", None)
            given = {} if connection is None else {each.keyword: each.val for each in connection.info}
            host, ca_file = _host_of(given), (given.get(b"sslrootcert") or b"").decode()
            try:
                handshake(*host, ca_file=None if ca_file in ("", "system") else ca_file, preface=SSL_REQUEST)
            except OSError as again:
                if found := refusal(again, url=str(place), setting=_SETTING, trust=_TRUST):
                    return found
            return f"the certificate of {place} is refused: look at {_TRUST}"
        if "root certificate file" in said:
            first, *_ = said.rpartition("failed: ")[2].splitlines()
            return f"the certificate of {place} is not verified: {first}; name another by {_TRUST}"
        if "does not support SSL, but SSL was required" in said:
            return f"{place} does not speak TLS: correct {_SETTING} (sslmode), or the server"
        return None

    def unusable(self, error: exc.DBAPIError) -> DatabaseUnavailable | None:
        """Return None: what is wrong with its files, the server's operator sees."""
        return None

    def error_code(self, error: exc.DBAPIError) -> str:
        """Return the SQLSTATE of an error; when the server sent none, 08000 (a lost connection) or "" (any other)."""
        not_answered = isinstance(error, exc.OperationalError | exc.InterfaceError)
        return getattr(error.orig, "sqlstate", None) or ("08000" if not_answered else "")


def _check(url: URL) -> None:
    """Raise ConfigError, which does not show the URL. A directory of sockets and a list of hosts are libpq's affair."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    try:
        if url.host and not url.host.startswith("/") and "," not in url.host:
            check_host(url.host)
        if url.port is not None and not 0 < url.port < 65_536:
            raise ValueError("the port is none")
        make_conninfo("", **{name: value for name, value in url.query.items() if isinstance(value, str)})
    except ProgrammingError:
        raise ConfigError("an option behind ? is none of PostgreSQL", field="database_url") from None
    except ValueError as error:
        raise ConfigError(str(error), field="database_url") from None


def _host_of(given: Mapping[bytes, bytes | None]) -> tuple[str, int]:
    """Return host and port of libpq's options, the first ones of several."""
    first = [(given.get(name) or b"").decode().partition(",")[0] for name in (b"host", b"port")]
    return first[0] or "localhost", int(first[1] or 5432)


def _engine(url: URL, connections: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections,
        isolation_level="AUTOCOMMIT",  # BEGIN is ours: psycopg's takes a round trip of its own
        connect_args=dict(_CONNECT),
    )

    @event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], record: object) -> None:
        try:
            connection.execute(_SESSION)
            [(pid,)] = connection.execute("SELECT pg_backend_pid()")
        except BaseException:
            connection.close()  # SQLAlchemy forgets it
            raise
        # Behind a pooler the statement of a name may be another client's, because psycopg counts its names.
        if pid != connection.info.backend_pid:
            prepare_nothing(engine.dialect)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if prepares_nothing(engine.dialect):
            raw: Any = connection.connection.dbapi_connection
            raw.prepare_threshold = None
        statement: Statement = connection.get_execution_options().get("omni_jobs_begin", _BEGIN_WRITING)
        begin_with_first(connection, statement)

    @event.listens_for(engine, "before_cursor_execute")
    def begin_before(connection: Connection, *call: object) -> None:
        begin_now(connection)

    return engine
