"""A watch over jobs in a database, on both databases: what it shows of their lives, and what it reads for it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
import pytest_asyncio

from omni_jobs.database.database import Database
from omni_jobs.database.statement import listed
from omni_jobs.errors import OutOfMemory
from omni_jobs.jobs import Glance, Jobs, ProgressReport
from omni_jobs.jobs.read import glances
from omni_jobs.states import JobState
from omni_jobs.watch.watch import Watch
from tests.integration.job_steps import (
    ANY_SCRIPT,
    claim,
    complete_each,
    done,
    fail,
    failed,
    new_job,
    register,
    register_each,
    submit_one,
)
from tests.services.postgres import by_owner


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database)


@pytest_asyncio.fixture
async def watch(jobs: Jobs) -> AsyncIterator[Watch]:
    watch = Watch(jobs)
    yield watch
    watch.release()


async def shown(changes: AsyncGenerator[Glance, None]) -> tuple[str, list[str], list[str | None]]:
    """The next glance: the job's state, those of its stage runs, and the texts of their progress."""
    glance = await asyncio.wait_for(anext(changes), 30)
    texts = [run.progress and run.progress.text for run in glance.runs]
    return glance.state, [f"{run.stage} {run.state} {run.attempt}" for run in glance.runs], texts


async def test_a_job_is_shown_from_its_submit_to_its_end(jobs: Jobs, watch: Watch) -> None:
    register_each(jobs)
    job_id = submit_one(jobs, new_job()).job_id
    async with asyncio.timeout(60):
        changes = watch.changes(job_id, watch.reserve(), with_runs=True)
        assert await shown(changes) == ("queued", ["first queued 0", "second pending 0"], [None, None])
        [run] = claim(jobs, "first")
        assert await shown(changes) == ("in_progress", ["first running 1", "second pending 0"], [None, None])
        for words in ("Hel", "Hello", ANY_SCRIPT):
            jobs.report_progress([ProgressReport(run.stage_run_id, run.attempt, 1, None, "tokens", text=words)])
            assert await shown(changes) == ("in_progress", ["first running 1", "second pending 0"], [words, None])
        fail(jobs, failed(run, "first", OutOfMemory("no room", stage="first")))
        assert await shown(changes) == ("in_progress", ["first queued 1", "second pending 0"], [None, None])
        jobs.cancel(job_id)
        assert await shown(changes) == ("cancelled", ["first cancelled 1", "second cancelled 0"], [None, None])
        assert await anext(changes, None) is None


async def test_the_progress_of_what_has_ended_is_read_no_more(jobs: Jobs) -> None:
    register_each(jobs)
    job_id = submit_one(jobs, new_job()).job_id
    [run] = claim(jobs, "first")
    jobs.report_progress([ProgressReport(run.stage_run_id, run.attempt, 1, None, "tokens", text="Hello")])
    assert jobs.glances([job_id], [job_id])[job_id].runs[0].progress is not None
    jobs.report([done(run, "first")])
    assert jobs.glances([job_id], [job_id])[job_id].runs[0].progress_json is None
    assert jobs.glances([job_id]) == {job_id: Glance(JobState.IN_PROGRESS)}


async def test_many_wait_for_their_own_jobs(jobs: Jobs, watch: Watch) -> None:
    register_each(jobs)
    ended = [submit_one(jobs, new_job()).job_id for _ in range(3)]
    waits = [asyncio.create_task(watch.until_ended(job_id, 60)) for job_id in ended]
    complete_each(jobs)
    assert await asyncio.wait_for(asyncio.gather(*waits), 30) == [True] * 3
    cancelled, deleted, stays = (submit_one(jobs, new_job()).job_id for _ in range(3))
    other, never_was, goes_on = (
        asyncio.create_task(watch.until_ended(job_id, 60)) for job_id in (cancelled, "job-none", stays)
    )
    jobs.cancel(cancelled)
    assert await asyncio.wait_for(asyncio.gather(other, never_was), 30) == [True, True]
    jobs.cancel(deleted)
    jobs.delete(deleted)
    assert await asyncio.wait_for(watch.until_ended(deleted, 60), 30)
    assert not goes_on.done()


async def test_every_replica_shows_the_same(jobs: Jobs, watch: Watch, database_url: str) -> None:
    register(jobs, "w")
    job_id = submit_one(jobs, new_job({"first": []})).job_id
    database = Database(database_url)
    replica = Watch(Jobs(database))
    both = [each.changes(job_id, each.reserve(), with_runs=True) for each in (watch, replica)]
    for change in (lambda: None, lambda: claim(jobs, "w"), lambda: jobs.cancel(job_id)):
        change()
        first, second = await asyncio.gather(*map(shown, both))
        assert first == second
    replica.release()
    database.close()


def plan_of(database: Database, name: str, job_id: str) -> str:
    """How the database executes a statement of the glances."""
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    with database.begin() as tx:
        query = glances._sql[name].compiled(tx.dialect)
        parameters = {"ids": listed([job_id])}
        given = parameters if database.dialect == "postgresql" else [parameters["ids"]]
        rows = tx.connection.cursor().execute(f"{explain} {query.text}", given)
        return "\n".join(str(row[-1]) for row in rows)


def test_a_poll_finds_rows_by_the_ids_of_jobs_alone(jobs: Jobs, database: Database) -> None:
    job_id, *_ = [each.job_id for each in jobs.submit_all([new_job() for _ in range(2000)])]  # type: ignore[union-attr]
    if database.dialect == "postgresql":
        by_owner(database, "ANALYZE")
    for name, table in (("states", "jobs"), ("runs", "stage_runs")):
        plan = plan_of(database, name, job_id)
        assert f"SCAN {table}" not in plan
        assert f"Seq Scan on {table}" not in plan
        assert table in plan
