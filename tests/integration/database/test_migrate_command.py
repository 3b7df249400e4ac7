"""``omni-jobs migrate``: what it says it would do, the way back, kills, two at once, a full disk, a live stack."""

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.migrations import revisions, statements
from omni_jobs.database.schema_plan import Direction, SchemaChange, changes, check_way_back, direction, plan
from omni_jobs.database.tables import Base
from omni_jobs.errors import ConfigError, Conflict
from tests.services.small_disk import fill, postgres_with_small_disk

NUMBERS = [each.number for each in revisions()]


def migrate(url: str, *arguments: str, file_bytes: int | None = None) -> subprocess.Popen[str]:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.Popen(
        [sys.executable, "-m", "omni_jobs.cli", "migrate", *arguments],
        env={**os.environ, "OMNI_JOBS_DATABASE_URL": url, "COLUMNS": "200"},
        preexec_fn=limit,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def run(*arguments: str) -> tuple[int, str, str]:
    """The command in this process, on the database of ``opened``: its exit code, output and errors."""
    done = CliRunner().invoke(app, ["migrate", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def opened(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("OMNI_JOBS_DATABASE_URL", empty_url)
    monkeypatch.setenv("COLUMNS", "200")
    with closing(Database(empty_url, retry_for_s=5)) as database:
        yield database


def fill_errors(database: Database, count: int) -> None:
    """Write as many errors of attempts, whose indexes then take a while to build."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
    job = (
        "INSERT INTO jobs (id, state, pipeline, pipeline_version, pipeline_digest, modalities, request_digest, media, "
        "metadata, seed, tenant, retries, created_at, payloads_gone, inputs_gone, artifacts_gone, priority, cost, "
        "request) VALUES ('j', 'failed', 'p', '1', 'd', '[]', 'r', '[]', '{}', 1, 't', 0, 0, false, false, false, "
        "'normal', 1, '{}')"
    )
    run = (
        "INSERT INTO stage_runs (id, job_id, position, pipeline, stage, queue, inputs, has_successors, state, attempt, "
        "payload_gone, turn, pipeline_digest, is_high) "
        "VALUES (1, 'j', 0, 'p', 's', 'q', '[]', false, 'failed', 1, false, 1, 'd', false)"
    )
    errors = (
        "INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at) "
        f"{numbers} SELECT 1, i, 'w', '{{}}', i FROM n"
    )
    with database.begin() as connection:
        connection.execute(text(job))
        connection.execute(text(run))
        if database.dialect == "sqlite":
            errors = f"INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at) {numbers}" + (
                "SELECT 1, i, 'w', '{}', i FROM n"
            )
        connection.execute(text(errors), {"count": count})


def is_whole(database: Database) -> bool:
    with database.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        found = compare_metadata(context, Base.metadata)
    return found == []


# The rule


def test_each_revision_belongs_to_a_release_and_the_newest_to_this_one() -> None:
    releases = [tuple(map(int, each.release.split("."))) for each in revisions()]
    assert releases == sorted(releases)
    assert releases[-1] <= tuple(map(int, version("omni-jobs").split(".")[:3]))


def test_a_release_expands_the_schema_or_contracts_it() -> None:
    """So that processes of the release before go on while it is migrated, and after."""
    for release in {each.release for each in revisions()}:
        assert len({direction(each) for each in revisions() if each.release == release} - {None}) <= 1, release
    assert {direction(each) for each in revisions()} == {Direction.EXPANDS, None}


def test_the_oldest_build_of_a_schema_is_known_and_never_older_than_that_of_the_one_before() -> None:
    for each in revisions():
        assert each.oldest is None or each.oldest in NUMBERS[: NUMBERS.index(each.number) + 1], each.number
    stated = [each.oldest for each in revisions() if each.oldest is not None]
    assert stated == sorted(stated)


def test_a_revision_that_contracts_says_which_builds_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = SchemaChange("drop_column", "jobs", "seed", "")
    monkeypatch.setattr("omni_jobs.database.schema_plan.changes", lambda *_: [dropping])
    last = revisions()[-1]
    with pytest.raises(ConfigError, match="its oldest says which builds may go on"):
        direction(last._replace(oldest=None))
    assert direction(last._replace(oldest="0022")) is Direction.CONTRACTS


def test_a_revision_that_commits_before_its_end_can_be_begun_again() -> None:
    for each in revisions():
        written = statements("postgresql", each, back=False)
        if any("CONCURRENTLY" in statement for statement in written):
            again = [statement for statement in written if not re.match(r"DELETE|ALTER TABLE \w+ VALIDATE", statement)]
            assert all(re.search("IF (NOT )?EXISTS", statement) for statement in again), each.number


@pytest.mark.parametrize("number", NUMBERS[1:])
def test_an_index_of_a_table_that_may_be_large_is_built_while_others_write(number: str) -> None:
    """Only 0006 takes a lock on such a table, as the last that it does; 0007 checks the rows without one."""
    (revision,) = [each for each in revisions() if each.number == number]
    large = ("jobs", "stage_runs", "events", "attempt_errors", "artifacts")
    held = {change.lock for change in changes("postgresql", revision) if change.lock.startswith("SHARE")}
    found = changes("postgresql", revision)
    assert not any(change.kind in ("fill", "copy_table") and change.table in large for change in found)
    assert held == ({"SHARE ROW EXCLUSIVE on jobs"} if number == "0006" else set())


# What it would do


def test_it_says_what_it_would_do_and_does_nothing(opened: Database, empty_url: str) -> None:
    code, out, _ = run("--check", "--json")
    assert (code, len(json.loads(out)["revisions"])) == (8, len(NUMBERS))
    assert opened.revision() is None
    if opened.dialect == "sqlite":
        assert not Path(empty_url.removeprefix("sqlite:///")).exists()
    opened.migrate("0011")
    fill_errors(opened, 1000)
    code, out, _ = run("--check", "--json")
    found: dict[str, Any] = json.loads(out)
    first = found["revisions"][0]
    assert (code, found["current"], found["target"]) == (8, "0011", REVISION)
    assert (first["revision"], first["rows"]) == ("0012", {"attempt_errors": 1000})
    assert {(each["kind"], each["of"]) for each in first["changes"]} >= {("add_column", "tenant")}
    code, out, _ = run("--check")
    assert code == 8
    assert "add column attempt_errors.fingerprint" in out
    assert f"versions that know 0022 or newer work on the schema {REVISION}, older ones do not start" in out
    assert opened.revision() == "0011"
    assert run()[0] == 0
    assert run("--check")[:2] == (0, "the database is up to date\n")


def test_the_schema_of_a_newer_build_is_told(opened: Database, empty_url: str) -> None:
    opened.migrate()
    opened.run(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    said = "the database has the schema 9999 of a newer version, on which this one works: there is nothing to do\n"
    for arguments in ((), ("--check",)):
        assert run(*arguments) == (0, said, ""), arguments
    code, out, _ = run("--check", "--json")
    found = json.loads(out)
    assert (code, found["current"], found["target"], found["revisions"]) == (0, "9999", REVISION, [])
    for arguments in (("--down",), ("--down", "--to", "0001")):
        code, _, err = run(*arguments)
        assert (code, "a newer one has" in err) == (1, True), arguments
    opened.run(lambda tx: tx.execute(text("UPDATE oldest_builds SET revision = '9998', release = '7.0.0'")))
    for arguments in ((), ("--check",), ("--check", "--json"), ("--down",), ("--down", "--to", "0001")):
        code, out, err = run(*arguments)
        assert (code, out) == (1, ""), arguments
        assert ("a newer one has" if "--down" in arguments else "start one of omni-jobs 7.0.0 or newer") in err, (
            arguments
        )
    assert opened.revision() == "9999"


# The way back


def test_each_revision_is_undone_and_made_again(opened: Database) -> None:
    opened.migrate()
    opened.migrate(NUMBERS[0])
    assert opened.revision() == NUMBERS[0]
    with opened.begin() as connection:
        left = opened.table_names(connection)
    assert "job_labels" not in left
    opened.migrate()
    assert is_whole(opened)


def test_the_way_back_is_refused_where_data_would_be_lost(opened: Database, empty_url: str) -> None:
    opened.migrate()
    code, _, err = run("--down")
    assert (code, "no release came before it" in err) == (1, True)
    code, _, err = run("--down", "--to", "none")
    assert (code, "no revision" in err) == (2, True)
    add = text("INSERT INTO down_engines (slot, pipeline, stage, at) VALUES ('s', 'p', 't', 0)")
    opened.run(lambda tx: tx.execute(add))
    code, _, err = run("--down", "--to", "0015")
    assert (code, "would be lost: down_engines. To lose it, say --lose down_engines" in err) == (1, True)
    assert opened.revision() == REVISION, "nothing is half done"
    code, out, _ = run("--down", "--to", "0015", "--lose", "down_engines")
    assert (code, out) == (0, "the database has the schema 0015\n")
    opened.migrate()
    assert is_whole(opened)


def test_what_cannot_be_undone_is_told(opened: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.migrate("0003")
    lasting = [each._replace(can_be_undone=each.number != "0002") for each in revisions()]
    monkeypatch.setattr("omni_jobs.database.migrations.revisions", lambda: lasting)
    with pytest.raises(Conflict, match="revision 0002 cannot be undone"):
        check_way_back(opened, "0001", ())


# Faults


@pytest.mark.parametrize("round_", range(3))
def test_one_that_is_killed_is_begun_again_by_two_at_once(opened: Database, empty_url: str, round_: int) -> None:
    opened.migrate("0011")
    fill_errors(opened, 60_000)
    killed = migrate(empty_url)
    assert killed.stderr is not None
    # In the middle of 0012, which builds three indexes: it begins once its lock is seen, or a while after the start.
    deadline = time.monotonic() + 30
    while not is_building(opened) and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.02 * round_)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = [migrate(empty_url) for _ in range(2)]
    results = [ended(each) for each in again]
    assert [code for code, _, _ in results] == [0, 0], results
    assert opened.revision() == REVISION
    assert is_whole(opened)
    made = [line for _, _, err in results for line in err.splitlines() if line.endswith(" made")]
    assert len(made) == len(set(made)), "no revision is made twice"
    if opened.dialect == "postgresql":
        invalid = text("SELECT count(*) FROM pg_index WHERE NOT indisvalid")
        assert opened.read(lambda tx: tx.execute(invalid).scalar_one()) == 0


def is_building(database: Database) -> bool:
    """Whether a migration is under way: it holds SQLite's write lock, or builds an index on PostgreSQL."""
    if database.dialect == "postgresql":
        query = text(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' "
            "AND state = 'active' AND datname = current_database()"
        )
        return bool(database.read(lambda tx: tx.execute(query).scalar_one()))
    file = database._backend._file  # type: ignore[union-attr]
    with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def test_a_full_disk_leaves_the_schema_of_a_revision(tmp_path: Path) -> None:
    file = tmp_path / "jobs.sqlite"
    url = f"sqlite:///{file}"
    with closing(Database(url)) as database:
        database.migrate("0011")
        fill_errors(database, 30_000)
    code, _, err = ended(migrate(url, file_bytes=500_000))
    assert code == 3, err
    assert "Traceback" not in err
    assert "mend the fault and run omni-jobs migrate again" in err
    with closing(Database(url)) as database:
        stopped_at = database.revision()
        assert stopped_at == "0011"
        with database.begin() as connection:
            assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
            assert connection.execute(text("SELECT count(*) FROM attempt_errors")).scalar_one() == 30_000
        assert plan(database).revisions[0].revision == "0012"
    assert ended(migrate(url))[0] == 0
    with closing(Database(url)) as database:
        assert is_whole(database)


def test_a_full_disk_of_postgresql_leaves_the_schema_of_a_revision() -> None:
    with postgres_with_small_disk() as server:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("CREATE DATABASE jobs TABLESPACE small")
        url = f"{server.rpartition('/')[0]}/jobs"
        with closing(Database(url)) as database:
            database.migrate("0011")
            fill_errors(database, 30_000)
        with psycopg.connect(url, autocommit=True) as connection:
            fill(connection)
            code, _, err = ended(migrate(url))
            assert code == 3, err
            assert "Traceback" not in err
            assert "No space left on device" in err
            assert "mend the fault and run omni-jobs migrate again" in err
            with closing(Database(url)) as database:
                assert database.revision() == "0011"
                assert plan(database).revisions[0].revision == "0012"
            connection.execute("DROP TABLE ballast")
            assert ended(migrate(url))[0] == 0
            with closing(Database(url)) as database:
                assert is_whole(database)
            assert connection.execute("SELECT count(*) FROM attempt_errors").fetchone() == (30_000,)
            assert connection.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)


def test_a_live_stack_waits_less_than_a_second_behind_a_migration_that_waits(
    postgres_url: str, empty_databases: Any
) -> None:
    url = empty_databases.take()
    try:
        with closing(Database(url)) as database:
            database.migrate("0015")
        waits: list[float] = []
        with psycopg.connect(url) as long, psycopg.connect(url, autocommit=True) as live:
            long.execute("SELECT count(*) FROM stage_runs")  # a dump, say: its lock stays until it ends
            process = migrate(url)
            until = time.monotonic() + 60
            while max(waits, default=0) < 0.3 and time.monotonic() < until:
                began = time.monotonic()
                live.execute("UPDATE stage_runs SET attempt = attempt WHERE id = 0")
                waits.append(time.monotonic() - began)
                time.sleep(0.005)
            assert process.poll() is None, "it waits for the dump"
            long.rollback()
        assert ended(process)[0] == 0
        assert 0.3 < max(waits) < 1.2, "it queued for the lock, and gave up in time"
    finally:
        empty_databases.give_back(url)
