"""The schema: what the migrations make is what the models say, on both databases."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.exc import IntegrityError

from omni_jobs.database import migrations as schema
from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.migrations import downgrade, newest_revision
from omni_jobs.database.tenant_tables import Base
from omni_jobs.errors import ConfigError, DatabaseUnavailable
from omni_jobs.jobs import Jobs
from tests.integration.job_steps import claim, register

KEYS_ARE_ALL_ONE = "0004"
"""The revision before a key was its tenant's own."""

JOB = text(
    "INSERT INTO jobs (id, state, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest,"
    " idempotency_key, media, metadata, seed, tenant, retries, created_at, payloads_gone, inputs_gone, artifacts_gone)"
    " VALUES (:id, 'queued', 'p', '1', '', '[]', :request, 'd', :key, '[]', '{}', 7, :tenant, 0, 1.5,"
    " false, false, false)"
)
STAGE_RUN = text(
    "INSERT INTO stage_runs (id, job_id, position, pipeline, stage, queue, inputs, capture, state, attempt,"
    " payload_gone) VALUES (:id, :job_id, 0, 'p', 's', 'q', '[]', false, 'queued', 0, false)"
)


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


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url, retry_for_s=5)
    yield database
    database.close()


def test_the_migrations_make_what_the_models_say(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        indices = {
            index["name"]: index["dialect_options"].get(f"{empty.dialect}_where")
            for index in inspect(connection).get_indexes("stage_runs")
        }
    assert {name for name, where in indices.items() if where is not None} >= {
        "ix_stage_runs_apart",
        "ix_stage_runs_high",
        "ix_stage_runs_pending",
        "ix_stage_runs_queued",
        "ix_stage_runs_running",
    }


def test_migrating_again_changes_nothing(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO workers (id, slot, pipeline, stage, host, pid, slots, started_at, renewed_at, lease_until)"
                " VALUES ('w', 's', 'p', 't', 'h', 1, 1, 0, 0, 0)"
            )
        )
    database.migrate()
    database.check()
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM workers")).scalar_one() == 1


_JOB_OF_BEFORE = """
INSERT INTO jobs (id, state, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest, media,
                  metadata, seed, tenant, retries, created_at, payloads_gone, inputs_gone, artifacts_gone)
VALUES (:id, :state, 'echo', '1', '0123456789abcdef', '["text"]', '{}', 'r', '[]',
        '{}', 0, 'default', 0, 1, :no, :no, :no)
"""
_STAGE_RUN_OF_BEFORE = """
INSERT INTO stage_runs (id, job_id, position, pipeline, stage, queue, inputs, capture, state, attempt,
                        due, announce_at, queued_at, payload_gone)
VALUES (:id, :job, 0, 'echo', 'first', 'echo.first', '[]', :no, :state, 0, 1, 1, 1, :no)
"""


def test_jobs_of_before_the_digests_of_flows_get_a_workers_file(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        downgrade(connection, "0005")
        connection.execute(
            text(
                "INSERT INTO workers (id, slot, pipeline, stage, host, pid, slots, started_at, renewed_at, lease_until)"
                " VALUES ('before', 's', 'echo', 'first', 'h', 1, 1, 0, 0, 1e11)"
            )
        )
        for number, (state, run_state) in enumerate([("queued", "queued"), ("failed", "failed")]):
            job = f"job-{number}"
            connection.execute(text(_JOB_OF_BEFORE), {"id": job, "state": state, "no": False})
            run = {"id": number + 1, "job": job, "state": run_state, "no": False}
            connection.execute(text(_STAGE_RUN_OF_BEFORE), run)
    empty.migrate()
    jobs = Jobs(empty)
    assert [worker.pipeline_digest for worker in jobs.workers()] == [""]
    register(jobs, "w", digest="some file")
    jobs.retry("job-1")
    jobs.rescue()
    assert [each.job_id for each in claim(jobs, "w")] == ["job-0", "job-1"]
    found = jobs.get("job-0")
    assert (found.waiting, found.warnings, found.stages[0].finish_reason) == (None, [], None)


def test_processes_may_migrate_at_once(empty_url: str) -> None:
    def migrate(_: int) -> None:
        database = Database(empty_url)
        database.migrate()
        database.check()
        database.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, range(4)))


def test_a_newer_versions_schema_is_refused(empty: Database) -> None:
    empty.migrate()
    empty.run(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(ConfigError, match=r"a newer one has migrated.*9999"):
        empty.migrate()


def test_the_newest_migration_is_the_revision_that_is_asked_for() -> None:
    assert newest_revision() == REVISION


def test_the_way_back(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        downgrade(connection, "base")
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}


def test_a_database_without_the_schema_is_not_ready(empty: Database) -> None:
    if empty.dialect == "postgresql":
        with pytest.raises(DatabaseUnavailable, match="run omni-jobs migrate"):
            empty.check()
    else:
        with pytest.raises(DatabaseUnavailable):
            empty.check()
    empty.migrate()
    empty.check()
    with empty.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'older'"))
    with pytest.raises(DatabaseUnavailable, match="the database's schema is older"):
        empty.check()


def rows_of(connection: Connection, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1")).mappings()]


def test_keys_become_their_tenants_own_over_rows_that_are_there(empty: Database, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("omni_jobs.database.migrations.upgrade", partial(schema.upgrade, revision=KEYS_ARE_ALL_ONE))
        empty.migrate()
    tables = ("jobs", "stage_runs", "attempt_errors", "artifacts", "events")
    with empty.begin() as connection:
        for number, (tenant, key) in enumerate((("a", "k"), ("a", None), ("b", None), ("b", "l"))):
            connection.execute(
                JOB, {"id": f"job-{number}", "tenant": tenant, "key": key, "request": '{"text": "é 中"}'}
            )
            connection.execute(STAGE_RUN, {"id": number, "job_id": f"job-{number}"})
            connection.execute(text("INSERT INTO attempt_errors VALUES (:id, 1, 'w', '{}', 1.5)"), {"id": number})
        before = {table: rows_of(connection, table) for table in tables}
    empty.migrate()
    with empty.begin() as connection:
        for table in tables:
            for old, new in zip(before[table], rows_of(connection, table), strict=True):
                old.pop("announce_at", None)  # which a later revision drops
                assert old.items() <= new.items()  # later revisions may add columns
        if empty.dialect == "sqlite":
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
            assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        connection.execute(JOB, {"id": "job-9", "tenant": "b", "key": "k", "request": "{}"})
    with empty.begin() as connection, pytest.raises(IntegrityError):
        connection.execute(JOB, {"id": "job-10", "tenant": "b", "key": "k", "request": "{}"})
    with empty.begin() as connection:  # what refers to a job goes with it, as before
        connection.execute(text("DELETE FROM jobs WHERE id = 'job-0'"))
        assert len(rows_of(connection, "stage_runs")) == 3
        assert len(rows_of(connection, "attempt_errors")) == 3


def test_partial_indexes_stay_what_the_models_say(empty: Database, tmp_path: Path) -> None:
    if empty.dialect != "sqlite":
        pytest.skip("only SQLite copies tables")
    empty.migrate()
    made = create_engine(f"sqlite:///{tmp_path / 'made.sqlite'}")
    Base.metadata.create_all(made)
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    with empty.begin() as connection, made.begin() as other:
        found, expected = (
            {row.name: " ".join(row.sql.replace('"', "").split()) for row in each.execute(query)}
            for each in (connection, other)
        )
    made.dispose()
    assert found == expected
