"""Transitions are heard once each, after their commit, whoever makes them, on SQLite and on PostgreSQL."""

from collections.abc import Sequence

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable, ModelError, OutOfMemory
from omni_jobs.jobs import Change, Jobs, JobsObserver
from tests.integration.job_steps import claim, done, fail, failed, new_job, pass_time, register, release, submit_one

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Heard(JobsObserver):
    """What was heard since the last look, as words."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def changed(self, changes: Sequence[Change]) -> None:
        self.changes += changes

    def words(self) -> list[str]:
        changes, self.changes = self.changes, []
        return [f"{change.stage or 'job'} {change.state.value}" for change in changes]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def jobs(database: Database, heard: Heard) -> Jobs:
    return Jobs(database, observers=[heard])


def test_a_jobs_life(jobs: Jobs, heard: Heard) -> None:
    submit_one(jobs, new_job(traceparent=TRACEPARENT))
    assert heard.words() == []  # the intake's observers hear of it
    register(jobs, "w1")
    register(jobs, "w2", "second")
    (first,) = claim(jobs, "w1")
    assert heard.changes[-1].traceparent == first.traceparent == TRACEPARENT
    assert heard.words() == ["job in_progress", "first running"]
    assert jobs.report([done(first, "w1")])[0].won
    assert {change.traceparent for change in heard.changes} == {TRACEPARENT}
    assert [(change.attempt, change.worker) for change in heard.changes] == [(1, "w1"), (0, None)]
    assert heard.words() == ["first succeeded", "second queued"]
    (second,) = claim(jobs, "w2")
    assert heard.words() == ["second running"]
    assert jobs.report([done(second, "w2")])[0].won
    assert jobs.report([done(second, "w2")])[0].won  # a repeated report changes nothing
    assert heard.words() == ["second succeeded", "job completed"]


def test_a_jobs_trace_goes_with_it(jobs: Jobs, heard: Heard, database: Database) -> None:
    traced, other = submit_one(jobs, new_job(traceparent=TRACEPARENT)), submit_one(jobs, new_job())
    for each in (traced, other):
        jobs.cancel(each.job_id)
    assert {(change.job_id, change.traceparent) for change in heard.changes} == {
        (traced.job_id, TRACEPARENT),
        (other.job_id, None),
    }
    with database.begin() as tx:
        assert tx.execute(text("SELECT job_id, traceparent FROM traced_jobs")).all() == [(traced.job_id, TRACEPARENT)]
    jobs.delete(traced.job_id)
    with database.begin() as tx:
        assert tx.execute(text("SELECT job_id FROM traced_jobs")).all() == []


def test_failures_and_a_retry(jobs: Jobs, heard: Heard, database: Database) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w1")
    (first,) = claim(jobs, "w1")
    heard.words()
    fail(jobs, failed(first, "w1", OutOfMemory()))
    assert [change.error and change.error["code"] for change in heard.changes] == ["out_of_memory"]
    assert heard.words() == ["first queued"]
    pass_time(database, 3600)
    jobs.renew("w1", 60)
    (again,) = claim(jobs, "w1")
    assert heard.words() == ["first running"]
    fail(jobs, failed(again, "w1", ModelError("no")))
    codes = [change.error and change.error["code"] for change in heard.changes]
    assert list(zip(heard.words(), codes, strict=True)) == [
        ("first failed", "model_error"),
        ("second cancelled", None),
        ("job failed", "model_error"),
    ]
    jobs.retry(submitted.job_id)
    assert heard.words() == ["job queued"]


def test_a_cancel_of_what_waits_and_of_what_runs(jobs: Jobs, heard: Heard) -> None:
    waiting, running = submit_one(jobs, new_job()), submit_one(jobs, new_job())
    jobs.cancel(waiting.job_id)
    jobs.cancel(waiting.job_id)
    assert sorted(heard.words()) == ["first cancelled", "job cancelled", "second cancelled"]
    register(jobs, "w1")
    (first,) = claim(jobs, "w1")
    heard.words()
    jobs.cancel(running.job_id)
    assert heard.words() == ["second cancelled", "job cancelling"]
    release(jobs, [(first.stage_run_id, first.attempt)], "w1")
    assert heard.words() == ["first cancelled", "job cancelled"]


def test_what_a_rescuer_does(jobs: Jobs, heard: Heard, database: Database) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w1", lease_s=10)
    claim(jobs, "w1")
    submit_one(jobs, new_job(expires_in_s=5))
    heard.words()
    pass_time(database, 10)
    jobs.rescue()
    lost = next(change for change in heard.changes if change.error and change.error["code"] == "worker_lost")
    assert (lost.stage, lost.attempt, lost.worker) == ("first", 1, "w1")
    assert sorted(heard.words()) == ["first cancelled", "first queued", "job expired", "second cancelled"]


def test_nothing_is_heard_of_what_was_not_committed(jobs: Jobs, heard: Heard, database: Database) -> None:
    submitted = submit_one(jobs, new_job())
    database.close()
    with pytest.raises(DatabaseUnavailable):
        Jobs(Database("sqlite:////dev/null/none"), observers=[heard]).cancel(submitted.job_id)
    assert heard.words() == []
