"""The role of PostgreSQL by which the processes run: rows are its own, the schema is not.

That the processes need no more, all tests show that have ``database_url``: there it is this role's.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url, text
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.postgresql import _SESSION
from omni_jobs.errors import DatabaseUnavailable
from tests.docs.pages import blocks, page
from tests.services.postgres import create_cluster, running_cluster


@pytest.fixture
def owner_url(postgres_url: str) -> Iterator[str]:
    """An empty database of a role that may make roles and is no superuser, as a service's administrator is."""
    name = f"owner_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CREATEROLE")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
    yield postgres_url.replace("postgres@", f"{name}@").rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def running_url(owner_url: str) -> str:
    """The URL of a role that is not there yet, whose name and password have to be quoted."""
    place = owner_url.rpartition("@")[2]
    return f'postgresql://it"s%25{uuid4().hex}:p%27a%25s@{place}'


def migrate(url: str, runs_as: str, directory: Path) -> tuple[int, str]:
    (directory / "database_url").write_text(runs_as + "\n")
    environment = {"OMNI_JOBS_DATABASE_URL": url, "COLUMNS": "400"}
    done = CliRunner().invoke(app, ["migrate", "--runs-as", str(directory / "database_url")], env=environment)
    return done.exit_code, done.output


def test_it_works_with_rows_and_nothing_else(owner_url: str, running_url: str, tmp_path: Path) -> None:
    for _ in range(2):  # it may be called again
        code, output = migrate(owner_url, running_url, tmp_path)
        assert code == 0, output
        assert "p'a" not in output
    with closing(Database(running_url)) as database:
        database.check()
        database.check_writes()
    with psycopg.connect(running_url, autocommit=True) as connection:
        for refused in (
            "CREATE TABLE x (a int)",
            "CREATE INDEX ON jobs (seed)",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE SCHEMA s",
            "ALTER TABLE jobs ADD COLUMN colour text",
            "ALTER TABLE jobs DISABLE TRIGGER ALL",
            "DROP TABLE jobs",
            "TRUNCATE jobs CASCADE",
            "CREATE TRIGGER t BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "UPDATE alembic_version SET version_num = '0001'",
            "DELETE FROM alembic_version",
            "UPDATE oldest_builds SET revision = '9998'",
            "CREATE ROLE other",
            "CREATE DATABASE other",
            "SELECT pg_read_file('/etc/passwd')",
            "COPY jobs TO PROGRAM 'true'",
            "SELECT setval('events_id_seq', 1)",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(refused)


def test_the_server_gets_no_password_in_the_clear(
    owner_url: str, running_url: str, tmp_path: Path, postgres_url: str
) -> None:
    migrate(owner_url, running_url, tmp_path)
    with psycopg.connect(postgres_url) as connection:
        stored = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname LIKE 'it\"s%'").fetchall()
    assert all(each.startswith("SCRAM-SHA-256$") for (each,) in stored), stored
    assert stored


def test_it_may_use_the_tables_of_later_migrations(owner_url: str, running_url: str, tmp_path: Path) -> None:
    """Also of one that was called without the option, by hand say."""
    assert migrate(owner_url, running_url, tmp_path)[0] == 0
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute("CREATE TABLE later (id bigserial PRIMARY KEY, a int)")
    with psycopg.connect(running_url, autocommit=True) as connection:
        connection.execute("INSERT INTO later (a) VALUES (1)")
        connection.execute("UPDATE later SET a = 2")
        assert connection.execute("DELETE FROM later RETURNING a").fetchall() == [(2,)]
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("TRUNCATE later")


def test_a_right_that_it_had_before_is_taken(owner_url: str, running_url: str, tmp_path: Path) -> None:
    assert migrate(owner_url, running_url, tmp_path)[0] == 0
    role = Identifier(str(make_url(running_url).username))
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute(SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(role))
    assert migrate(owner_url, running_url, tmp_path)[0] == 0
    with psycopg.connect(running_url) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("TRUNCATE jobs CASCADE")


def test_a_role_that_can_do_more_is_refused(owner_url: str, postgres_url: str, tmp_path: Path) -> None:
    place = owner_url.rpartition("@")[2]
    owner = owner_url.removeprefix("postgresql://").partition("@")[0]
    member = f"member_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {member} LOGIN IN ROLE {owner}")
    for url, said in (
        (owner_url, "the role that migrates"),
        (f"postgresql://postgres@{place}", "superuser"),
        (f"postgresql://{member}@{place}", "belongs to"),
        (f"postgresql://{place}", "holds no URL"),
        ("sqlite:////tmp/x", "holds no URL"),
        ("postgresql://u:secret@[::bad/d", "holds no database URL"),
        ("postgresql://u:secret@-h-/d", "--runs-as: "),
    ):
        code, output = migrate(owner_url, url, tmp_path)
        assert (code, said in output, "secret" in output) == (1, True, False), output
    with psycopg.connect(postgres_url.rpartition("/")[0] + f"/{owner}", autocommit=True) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    code, output = migrate(owner_url, f"postgresql://r{uuid4().hex}@{place}", tmp_path)
    assert (code, "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in output) == (1, True), output


def test_the_url_of_another_database_is_refused(
    owner_url: str, running_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """Whether its role is there or not; both databases are named, and no password."""
    here, name = owner_url.rpartition("@")[2].split("/")
    elsewhere = running_url.removesuffix(name) + "postgres"
    for _ in range(2):
        code, output = migrate(owner_url, elsewhere, tmp_path)
        assert (code, f"postgresql://{here}/postgres" in output, f"postgresql://{here}/{name}" in output) == (1, 1, 1)
        assert "p'a" not in output
        assert "p%27a" not in output
        assert migrate(owner_url, running_url, tmp_path)[0] == 0, "now it is there"
    by_another_name = running_url.replace("@127.0.0.1:", "@localhost:")
    assert migrate(owner_url, by_another_name, tmp_path)[0] == 0


def test_a_database_of_this_name_on_another_server_is_refused(owner_url: str, running_url: str, tmp_path: Path) -> None:
    name = owner_url.rpartition("/")[2]
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-pg-"))
    try:
        with running_cluster(cluster := create_cluster(directory)):
            with psycopg.connect(cluster.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
                connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(str(make_url(running_url).username))))
            elsewhere = running_url.rpartition("@")[0] + f"@127.0.0.1:{cluster.port}/{name}"
            code, output = migrate(owner_url, elsewhere, tmp_path)
    finally:
        shutil.rmtree(directory)
    assert (code, f"postgresql://127.0.0.1:{cluster.port}/{name}, and" in output) == (1, True), output


def test_an_owner_that_may_make_no_role_says_what_to_do(owner_url: str, postgres_url: str, tmp_path: Path) -> None:
    owner, _, place = owner_url.removeprefix("postgresql://").partition("@")
    role = f"r{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {owner} NOCREATEROLE")
        code, output = migrate(owner_url, f"postgresql://{role}:x@{place}", tmp_path)
        assert (code, f"CREATE ROLE {role} LOGIN" in output) == (1, True), output
        connection.execute(f"CREATE ROLE {role} LOGIN")
    assert migrate(owner_url, f"postgresql://{role}:x@{place}", tmp_path) == (0, "the database is up to date\n")


def test_sqlite_has_no_roles(sqlite_url: str, tmp_path: Path) -> None:
    code, output = migrate(sqlite_url, "postgresql://a:b@h/d", tmp_path)
    assert (code, "SQLite has no roles" in output) == (1, True)


def test_the_running_role_cannot_migrate(owner_url: str, running_url: str, tmp_path: Path) -> None:
    """What is up to date it finds so; else it says what it may not."""
    assert migrate(owner_url, running_url, tmp_path)[0] == 0
    with closing(Database(running_url, retry_for_s=1)) as database:
        database.migrate()
        with pytest.raises(DatabaseUnavailable, match="omni-jobs migrate again") as raised:
            database.migrate("0019")
        assert "must be owner" in str(raised.value.because)
        assert database.revision() == REVISION


def test_a_role_without_rights_is_told_by_the_check(owner_url: str, postgres_url: str) -> None:
    with closing(Database(owner_url)) as owner:
        owner.migrate()
    role = f"r{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
    place = owner_url.rpartition("@")[2]
    with closing(Database(f"postgresql://{role}@{place}")) as database:
        with pytest.raises(DatabaseUnavailable) as raised:
            database.check()
        assert "permission denied" in str(raised.value.because)
        with pytest.raises(DatabaseUnavailable, match="cannot go on"):
            database.check_writes()


def test_behind_a_pooler_the_role_has_the_settings_of_a_session(
    owner_url: str, running_url: str, tmp_path: Path
) -> None:
    """The statements of docs/scaling.md give the role what a process sets when it connects."""
    assert migrate(owner_url, running_url, tmp_path)[0] == 0
    (block,) = blocks(page("scaling.md"), "sql")
    role = Identifier(str(make_url(running_url).username))
    with psycopg.connect(owner_url, autocommit=True) as owner:
        for statement in block.split(";\n"):
            owner.execute(statement.replace("omni_runs", role.as_string()))  # type: ignore[call-overload]
    names = re.findall(r"SET (\w+) =", _SESSION)
    with closing(Database(owner_url)) as database, psycopg.connect(running_url, autocommit=True) as plain:
        for name in names:
            shown = f"SHOW {name}"
            expected = database.read(lambda tx: tx.execute(text(shown)).scalar_one())  # noqa: B023
            assert plain.execute(shown).fetchall() == [(expected,)], name  # type: ignore[call-overload]
