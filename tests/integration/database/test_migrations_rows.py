"""Every revision's way to the newest one over jobs that are there: no row is lost or changed, and the jobs go on."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, inspect, text

from omni_jobs.database import migrations as schema
from omni_jobs.database.database import Database
from omni_jobs.database.tenant_tables import Base
from omni_jobs.jobs import Jobs, NewSnapshot
from omni_jobs.jobs.stored_bytes import JOB_ROW, STAGE_RUN_ROW
from omni_jobs.priority import Priority
from omni_jobs.settings import packaged_directory
from omni_jobs.states import JobState
from omni_jobs.storage import ObjectRef, snapshot_key
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    CHAIN,
    claim,
    complete_all,
    complete_each,
    counted_bytes,
    done,
    new_job,
    register,
    register_each,
    stored_bytes,
)

ANY_SCRIPT = "漢字 العربية 😀 '\"\\"
DONE, WAITING, HELD, FAILED = (f"job-{number:032x}" for number in range(1, 5))
DIGEST = "0123456789abcdef"

CHANGED = {("jobs", "pipeline_digest"), ("stage_runs", "announce_at")}
"""What a revision gives another meaning or drops; its own test says which."""


def revisions() -> list[str]:
    """All but the newest, the oldest first."""
    config = Config()
    config.set_main_option("script_location", str(packaged_directory("migrations")))
    newest_first = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    return newest_first[:0:-1]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without tables."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'rows.sqlite'}")
        yield database
        database.close()
        return
    server: str = request.getfixturevalue("postgres_url")
    name = f"rows_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    database = Database(f"{server.rsplit('/', 1)[0]}/{name}")
    yield database
    database.close()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def job(job_id: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": job_id,
        "state": state,
        "pipeline": "echo",
        "pipeline_version": "1",
        "pipeline_digest": DIGEST,
        "modalities": '["text"]',
        "request": '{"messages": [{"role": "user", "content": "' + "x" * 5000 + '"}]}',
        "request_digest": f"of {job_id}",
        "idempotency_key": f"key of {job_id}",
        "media": "[]",
        "metadata": '{"name": "\\u6f22"}',
        "seed": 2**63 - 1,
        "tenant": "default",
        "retries": 0,
        "created_at": 1000.25,
        "payloads_gone": False,
        "inputs_gone": False,
        "artifacts_gone": False,
        **more,
    }


def stage_run(number: int, job_id: str, stage: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "job_id": job_id,
        "position": ("first", "second").index(stage),
        "pipeline": "echo",
        "stage": stage,
        "queue": f"echo.{stage}",
        "inputs": "[]" if stage == "first" else '["first"]',
        "capture": stage == "first",
        "state": state,
        "attempt": 0,
        "payload_gone": False,
        **more,
    }


WAITS = {"due": 1000.25, "announce_at": 1000.25, "queued_at": 1000.25}
ERROR = '{"code": "model_error", "message": "' + r"no \ud83d\ude00" + '", "retryable": false}'

ROWS: Mapping[str, list[dict[str, Any]]] = {
    "jobs": [
        job(DONE, "completed", started_at=1001.0, finished_at=1002.5, prune_at=4e9),
        job(WAITING, "queued", idempotency_key=None, deadline=4e9),
        job(HELD, "in_progress", started_at=1001.0),
        job(FAILED, "failed", finished_at=1002.5, prune_at=4e9, error=ERROR, error_code="model_error"),
    ],
    "workers": [
        {"id": "gone", "slot": "echo.first-1@a", "pipeline": "echo", "stage": "first", "host": "a", "pid": 7,
         "slots": 4, "started_at": 1000.0, "renewed_at": 1001.0, "lease_until": 1011.0},
    ],
    "stage_runs": [
        stage_run(1, DONE, "first", "succeeded", attempt=2, owner="gone", failures='{"storage": 1}', result="{}",
                  payload_inline=b"\x00\xff", payload_bytes=2),
        stage_run(2, DONE, "second", "succeeded", attempt=1, result='{"text": "said"}', finished_at=1002.5),
        stage_run(3, WAITING, "first", "queued", **WAITS, queue_limit_s=1e6, queue_deadline=4e9),
        stage_run(4, WAITING, "second", "pending"),
        stage_run(5, HELD, "first", "running", attempt=1, owner="gone", started_at=1001.0, queued_at=1000.25),
        stage_run(6, HELD, "second", "pending"),
        stage_run(7, FAILED, "first", "failed", attempt=1, failures='{"model_error": 1}', finished_at=1002.5),
        stage_run(8, FAILED, "second", "cancelled", finished_at=1002.5),
    ],
    "attempt_errors": [
        {"stage_run_id": 1, "attempt": 1, "worker": "gone", "error": ERROR, "at": 1001.5},
        {"stage_run_id": 7, "attempt": 1, "worker": "gone", "error": ERROR, "at": 1002.5},
    ],
    "artifacts": [
        {"job_id": DONE, "name": "audio.wav", "stage_run_id": 2, "media_type": "audio/wav", "created_at": 1002.5,
         "ref": '{"key": "jobs/x/audio.wav", "size": 3, "digest": "xxh3:' + "0" * 32 + '"}'},
    ],
    "events": [
        {"id": 1, "job_id": DONE, "type": "job.completed", "data": "{}", "at": 1002.5},
        {"id": 2, "job_id": FAILED, "type": "job.failed", "data": '{"error": ' + ERROR + "}", "at": 1002.5},
    ],
    "garbage": [{"id": 1, "job_id": DONE, "what": f"jobs/{ANY_SCRIPT}/"}],
}  # fmt: skip


def fill(connection: Connection) -> None:
    """The rows, in the tables as they are."""
    for table, rows in ROWS.items():
        reflected = Table(table, MetaData(), autoload_with=connection)
        for row in rows:
            dropped = {name for of, name in CHANGED if of == table and name not in reflected.columns}
            connection.execute(reflected.insert().values({name: row[name] for name in row if name not in dropped}))
        if connection.dialect.name == "postgresql" and table in ("stage_runs", "events", "garbage"):
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 100)"))


def rows_of(connection: Connection, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2")).mappings()]


@pytest.mark.parametrize("revision", revisions())
def test_from_every_revision_the_rows_stay_and_the_jobs_go_on(
    empty: Database, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("omni_jobs.database.migrations.upgrade", partial(schema.upgrade, revision=revision))
        empty.migrate()
    with empty.begin() as connection:
        fill(connection)
        before = {table: rows_of(connection, table) for table in ROWS}
    assert {table: len(rows) for table, rows in before.items()} == {table: len(rows) for table, rows in ROWS.items()}

    empty.migrate()

    with empty.begin() as connection:
        for table, rows in before.items():
            kept = [{name: row[name] for name in row if (table, name) not in CHANGED} for row in rows]
            now = rows_of(connection, table)
            found = [{name: row.get(name) for name in old} for old, row in zip(kept, now, strict=True)]
            assert found == kept, table
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        if empty.dialect == "sqlite":
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    empty.check()
    the_jobs_go_on(Jobs(empty))


def the_jobs_go_on(jobs: Jobs) -> None:
    done, failed = jobs.get(DONE), jobs.get(FAILED)
    assert (done.status, done.result, done.metadata) == (JobState.COMPLETED, {"text": "said"}, {"name": "漢"})
    assert [artifact.name for artifact in done.artifacts] == ["audio.wav"]
    assert [error.message for error in done.stages[0].errors] == ["no 😀"]
    assert (failed.status, failed.error.code if failed.error else None) == (JobState.FAILED, "model_error")
    assert [event.type for event in jobs.events(FAILED)] == ["job.failed"]

    register(jobs, "first", "first", digest=DIGEST)
    register(jobs, "second", "second", digest=DIGEST)
    rescued = jobs.rescue()  # what its worker left
    assert (rescued.freed, set(rescued.queues)) == (1, {"echo.first"})
    assert [each.job_id for each in jobs.claim("first", 1).claims] == [WAITING], "the oldest first"
    jobs.release([(3, 1)], "first")
    complete_all_stages(jobs)
    assert [jobs.get(job_id).status for job_id in (WAITING, HELD)] == [JobState.COMPLETED] * 2
    assert jobs.get(HELD).stages[0].attempt == 2

    assert jobs.retry(FAILED) == {"echo.first"}
    complete_all_stages(jobs)
    assert jobs.get(FAILED).status is JobState.COMPLETED
    assert [event.type for event in jobs.events(FAILED)] == ["job.failed", "job.retried", "job.completed"]
    jobs.delete(DONE)
    assert {job.id for job in jobs.list().jobs} == {WAITING, HELD, FAILED}


def complete_all_stages(jobs: Jobs) -> None:
    for stage in ("first", "second"):
        jobs.rescue()  # gives stage runs of an unknown pipeline file that of the worker
        complete_all(jobs, stage)


# 0010: turns instead of hints

TIRED = '{"worker_lost": 3}'
WAITED = (
    # The job, and its first stage run's retries and failures; those with "suspect" in their name are one.
    ("job-10", None, None),
    ("job-11-suspect", None, TIRED),
    ("job-12", None, '{"worker_lost": 2, "storage": 5}'),
    ("job-13", '{"worker_lost": 5}', TIRED),
    ("job-14-suspect", '{"worker_lost": 1}', '{"worker_lost": 1}'),
    ("job-15-suspect", '{"out_of_memory": 1}', '{"fenced": 10}'),
)


@pytest.fixture
def of_before(empty: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database of revision 0008 with jobs in every state, and with more that wait."""
    with monkeypatch.context() as patch:
        patch.setattr("omni_jobs.database.migrations.upgrade", partial(schema.upgrade, revision="0008"))
        empty.migrate()
    with empty.begin() as connection:
        fill(connection)
        jobs, stage_runs = (Table(name, MetaData(), autoload_with=connection) for name in ("jobs", "stage_runs"))
        for number, (job_id, retries, failures) in enumerate(WAITED, start=10):
            connection.execute(jobs.insert().values(job(job_id, "queued")))
            run = stage_run(number, job_id, "first", "queued", **WAITS, retries=retries, failures=failures)
            connection.execute(stage_runs.insert().values(run))
    return empty


def test_what_waited_goes_on_by_its_age_and_suspects_alone(of_before: Database) -> None:
    of_before.migrate()
    jobs = Jobs(of_before)
    with of_before.begin() as connection:
        rows = connection.execute(text("SELECT job_id, state, turn, apart, pipeline_digest FROM stage_runs")).all()
    assert {row.turn for row in rows} == {0}
    assert {row.job_id for row in rows if row.apart is not None} == {name for name, *_ in WAITED if "suspect" in name}
    assert {row.pipeline_digest for row in rows if row.state in ("pending", "queued", "running")} == {DIGEST}
    assert {jobs.get(name).tenant for name, *_ in WAITED} == {"default"}
    register(jobs, "w", digest=DIGEST, slots=100)
    later = jobs.submit(new_job(pipeline_digest=DIGEST)).job_id
    found = []
    while claims := claim(jobs, "w"):
        found.append([each.job_id for each in claims])
        jobs.complete([done(each, "w") for each in claims])
    suspects = [[name] for name, *_ in WAITED if "suspect" in name]
    assert sorted(found[:3]) == suspects
    assert found[3:] == [[WAITING, *(name for name, *_ in WAITED if "suspect" not in name), later]]


def test_a_request_stays_the_last_column(of_before: Database) -> None:
    """SQLite reads a row up to the last column that is asked for, and requests may be megabytes."""
    of_before.migrate()
    with of_before.begin() as connection:
        names = [column["name"] for column in inspect(connection).get_columns("jobs")]
    assert set(names) == set(Base.metadata.tables["jobs"].columns.keys())
    if of_before.dialect == "sqlite":
        assert names[-1] == "request"


def test_the_way_back_from_turns(of_before: Database) -> None:
    with of_before.begin() as connection:
        before = {table: rows_of(connection, table) for table in ROWS}
    of_before.migrate()
    submitted = Jobs(of_before).submit(new_job())
    with of_before.begin() as connection:
        connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": submitted.job_id})
    with of_before._backend.migrating() as engine, engine.begin() as connection:
        schema.downgrade(connection, "0008")
    with of_before.begin() as connection:
        assert {table: rows_of(connection, table) for table in ROWS} == before
    of_before.migrate()
    of_before.check()


# 0014: slots that are kept for high jobs


def test_high_jobs_that_wait_over_the_upgrade_are_claimed_for_kept_slots(empty: Database) -> None:
    empty.migrate()
    jobs = Jobs(empty)
    submitted = {each: jobs.submit(new_job(priority=each)).job_id for each in Priority}
    with empty._backend.migrating() as engine, engine.begin() as connection:
        schema.downgrade(connection, "0012")
    with empty.begin() as connection:
        queues = connection.execute(text("SELECT DISTINCT queue FROM stage_runs")).scalars().all()
    assert sorted(queues) == ["echo.first", "echo.second"], "an older build knows no others"
    empty.migrate()
    register(jobs, "w")
    [claimed] = jobs.claim("w", 0, of_high=9).claims
    assert claimed.job_id == submitted[Priority.HIGH]
    [outcome] = jobs.complete([done(claimed, "w")])
    assert outcome.queues == {"echo.second.high"}
    assert {each.job_id for each in claim(jobs, "w")} == {submitted[Priority.NORMAL], submitted[Priority.LOW]}


# 0012: jobs that are held


def test_on_the_way_back_from_quotas_held_jobs_go_into_their_lines(empty: Database) -> None:
    empty.migrate()
    Tenants(empty).create("few", limits={"running_jobs": 1})
    jobs = Jobs(empty)
    submitted = [jobs.submit(new_job(tenant="few")).job_id for _ in range(2)]
    with empty._backend.migrating() as engine, engine.begin() as connection:
        schema.downgrade(connection, "0011")
    with empty.begin() as connection:
        rows = connection.execute(text("SELECT stage, state, reason FROM stage_runs")).tuples().all()
    assert sorted(rows) == [("first", "queued", None)] * 2 + [("second", "pending", None)] * 2
    empty.migrate()
    register(jobs, "w")
    assert [each.job_id for each in claim(jobs, "w")] == submitted


# 0013: snapshots


def test_the_build_before_goes_on_beside_snapshots_and_after_the_way_back(empty: Database) -> None:
    """It ends a stage run without a word of its snapshot; on the way back the snapshots are forgotten."""
    empty.migrate()
    jobs = Jobs(empty)
    register(jobs, "first", "first")
    register(jobs, "second", "second")
    jobs.submit_all([new_job(), new_job()])
    claims = claim(jobs, "first")
    refs = [
        ObjectRef(key=snapshot_key(each.job_id, each.stage, 1, 1), size=1, digest="xxh3:" + "0" * 32) for each in claims
    ]
    taken = [
        NewSnapshot(each.stage_run_id, 1, "first", ref, steps_done=3) for each, ref in zip(claims, refs, strict=True)
    ]
    assert jobs.record_snapshots(taken) == [True, True]
    with empty.begin() as connection:  # an end by the build before
        ended = text("UPDATE stage_runs SET state = 'failed', finished_at = 1 WHERE id = :id")
        connection.execute(ended, {"id": claims[0].stage_run_id})
    assert jobs.orphans([ref.key for ref in refs]) == {refs[0].key}
    with empty._backend.migrating() as engine, engine.begin() as connection:
        schema.downgrade(connection, "0012")
    with empty.begin() as connection:
        assert "snapshot" not in rows_of(connection, "stage_runs")[0]
    empty.migrate()
    jobs.release([(claims[1].stage_run_id, 1)], "first")
    [again] = claim(jobs, "first")
    assert (again.attempt, again.snapshot) == (2, None)


# 0020: what a tenant keeps stored counts its jobs' rows


def test_the_way_back_from_rows_that_count_and_up_again(empty: Database) -> None:
    empty.migrate()
    jobs = Jobs(empty)
    for tenant in ("a", "a", "b"):
        jobs.submit(new_job(tenant=tenant))
    register_each(jobs)
    complete_each(jobs)
    kept = counted_bytes(empty)
    assert kept == stored_bytes(empty)
    with empty._backend.migrating() as engine, engine.begin() as connection:
        schema.downgrade(connection, "0019")
    of_a_job = JOB_ROW + len(CHAIN) * STAGE_RUN_ROW
    assert counted_bytes(empty) == {"a": kept["a"] - 2 * of_a_job, "b": kept["b"] - of_a_job}
    empty.migrate()
    assert counted_bytes(empty) == kept
