"""Transactions of a crowd, and what they read, on SQLite and on PostgreSQL."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import OutOfMemory
from omni_jobs.jobs import Completion, JobFilter, Jobs, ProgressReport
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    complete_each,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    release,
    submit_one,
)


def test_a_crowd_never_deadlocks(jobs: Jobs, database: Database) -> None:
    """Submits, claims, completions, cancels, progress and rescues in big batches of different orders."""
    workers = [(f"{stage}{n}", stage) for stage in DIAMOND for n in range(2)]
    for worker, stage in workers:
        register(jobs, worker, stage, slots=1000)
    job_ids: list[str] = []
    ended = threading.Event()

    def submit() -> None:
        for n in range(8):
            new = [new_job(DIAMOND, tenant=f"t{(n + k) % 3}") for k in range(5)]
            jobs.submit_all(new)
            job_ids.extend(job.job_id for job in new)

    def work(worker: str) -> None:
        rng = random.Random(worker)
        completions: list[Completion] = []
        is_last = False
        while not is_last:
            is_last = ended.is_set()
            found = jobs.claim(worker, 15, reports=completions).claims
            claims = rng.sample(list(found), len(found))
            jobs.report_progress([ProgressReport(each.stage_run_id, each.attempt, 1, 2, "n") for each in claims])
            release(jobs, [(each.stage_run_id, each.attempt) for each in claims[:2]], worker)
            completions = [done(each, worker) for each in claims[2:]]
        jobs.report(completions)

    def disturb() -> None:
        rng = random.Random(0)
        for _ in range(12):
            for job_id in rng.sample(job_ids, min(1, len(job_ids))):
                jobs.cancel(job_id)
            jobs.rescue()

    with ThreadPoolExecutor(len(workers) + 2) as pool:
        working = [pool.submit(work, worker) for worker, _ in workers]
        try:
            for task in [pool.submit(submit), pool.submit(disturb)]:
                task.result()
        finally:
            ended.set()
        for task in working:
            task.result()
    if database.dialect == "postgresql":
        with database.begin() as tx:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert tx.execute(text(query)).scalar_one() == 0
    complete_each(jobs, [worker for worker, _ in workers])
    states = [jobs.get(job_id).status for job_id in job_ids]
    assert states.count(JobState.COMPLETED) + states.count(JobState.CANCELLED) == len(states) == 40
    assert states.count(JobState.COMPLETED) >= 28


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_round_reads_whole_tables(jobs: Jobs, database: Database) -> None:
    scans = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
            return
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
        scans.extend(
            f"{row[-1]}: {statement}"
            for row in plan
            if row[-1].startswith(("SCAN stage_runs", "SCAN jobs")) and "USING INDEX ix_stage_runs" not in row[-1]
        )

    submitted = [submit_one(jobs, new_job()) for _ in range(4)]
    register(jobs, "w", lease_s=10_000)
    claims = claim(jobs, "w")
    jobs.report_progress([ProgressReport(claims[0].stage_run_id, 1, 1, 2, "n")])
    jobs.report([done(claims[0], "w")])
    fail(jobs, failed(claims[1], "w", OutOfMemory()))
    fail(jobs, failed(claims[1], "w", OutOfMemory()))
    release(jobs, [(claims[2].stage_run_id, 1)], "w")
    jobs.cancel(submitted[3].job_id)
    jobs.renew("w", 60)
    pass_time(database, 5)
    scans.clear()  # pass_time reads all
    jobs.rescue()
    jobs.retire_worker("w")
    jobs.get(submitted[0].job_id)
    jobs.list(JobFilter(states=frozenset([JobState.QUEUED])))
    jobs.list(JobFilter(pipeline="echo"))
    jobs.counts()
    jobs.workers()
    assert scans == []
