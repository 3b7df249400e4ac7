"""Every revision's way to the newest one over jobs that are there: no row is lost or changed, and the jobs go on.

The rows are those that revision 0001 has.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table, text

from omni_jobs.database.database import Database
from omni_jobs.database.migrations import revisions
from omni_jobs.database.tables import Base
from omni_jobs.jobs import JobFilter, Jobs
from omni_jobs.jobs.keep.stored_bytes import LABEL_ROW
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    complete_all,
    register,
    release,
)

ANY_SCRIPT = "漢字 العربية 😀 '\"\\"
DONE, WAITING, HELD, FAILED = (f"job-{number:032x}" for number in range(1, 5))
DIGEST = "0123456789abcdef"


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
        "priority": "normal",
        "cost": 1.0,
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
        "pipeline_digest": DIGEST,
        "queue": f"echo.{stage}",
        "inputs": "[]" if stage == "first" else '["first"]',
        "has_successors": stage == "first",
        "state": state,
        "turn": 0,
        "is_high": False,
        "attempt": 0,
        "payload_gone": False,
        **more,
    }


WAITS = {"due": 1000.25, "queued_at": 1000.25}
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
         "slots": 4, "slots_for_high": 0, "loading": False, "heartbeat_s": 1.0, "pipeline_version": "1",
         "pipeline_digest": DIGEST, "started_at": 1000.0, "renewed_at": 1001.0, "lease_until": 1011.0},
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
        {"id": 1, "job_id": DONE, "number": 1, "type": "job.completed", "data": "{}", "at": 1002.5},
        {"id": 2, "job_id": FAILED, "number": 1, "type": "job.failed", "at": 1002.5,
         "data": '{"error": ' + ERROR + "}"},
    ],
    "garbage": [{"id": 1, "owner": DONE, "what": f"jobs/{ANY_SCRIPT}/"}],
}  # fmt: skip


def fill(connection: Connection) -> None:
    """The rows, in the tables as they are."""
    for table, rows in ROWS.items():
        reflected = Table(table, MetaData(), autoload_with=connection)
        for row in rows:
            connection.execute(reflected.insert().values(row))
        if connection.dialect.name == "postgresql" and table in ("stage_runs", "events", "garbage"):
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 100)"))


def rows_of(connection: Connection, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2")).mappings()]


@pytest.mark.parametrize("revision", [each.number for each in revisions()])
def test_from_every_revision_the_rows_stay_and_the_jobs_go_on(empty: Database, revision: str) -> None:
    empty.migrate(revision)
    with empty.begin() as connection:
        fill(connection)
        before = {table: rows_of(connection, table) for table in ROWS}
    assert {table: len(rows) for table, rows in before.items()} == {table: len(rows) for table, rows in ROWS.items()}

    empty.migrate()

    with empty.begin() as connection:
        for table, rows in before.items():
            now = rows_of(connection, table)
            found = [{name: row.get(name) for name in old} for old, row in zip(rows, now, strict=True)]
            assert found == rows, table
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        if empty.dialect == "sqlite":
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    empty.check()
    if revision < "0006":  # else the rows came later than the labels
        all_jobs_are_found_by_their_metadata(empty)
    no_event_id_comes_twice(empty)
    the_jobs_go_on(Jobs(empty))


def all_jobs_are_found_by_their_metadata(database: Database) -> None:
    """Their labels count among what their tenant keeps stored, as a delete of the jobs will say."""
    wanted = JobFilter(metadata=[("name", "漢")])
    assert Jobs(database).matching(wanted, 10).ids == [FAILED, HELD, WAITING, DONE]
    assert Jobs(database).stored_bytes("default") == 4 * LABEL_ROW


def no_event_id_comes_twice(database: Database) -> None:
    """Not that of an event from before the migration, nor that of one since."""
    add = text("INSERT INTO events (job_id, number, type, data, at) VALUES ('other', 1, 'x', '{}', 0) RETURNING id")
    last = ROWS["events"][-1]
    with database.begin() as connection:
        connection.execute(text("DELETE FROM events WHERE id = :id"), {"id": last["id"]})
        first = connection.execute(add).scalar_one()
        connection.execute(text("DELETE FROM events WHERE id = :id"), {"id": first})
    with database.begin() as connection:
        second = connection.execute(add).scalar_one()
        connection.execute(text("DELETE FROM events WHERE id = :id"), {"id": second})
        connection.execute(Table("events", MetaData(), autoload_with=connection).insert().values(last))
    assert last["id"] < first < second


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
    release(jobs, [(3, 1)], "first")
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
        complete_all(jobs, stage)
