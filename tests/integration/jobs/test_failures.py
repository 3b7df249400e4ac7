"""Stage runs that fail or are released, on SQLite and on PostgreSQL."""

from datetime import timedelta

import pytest

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, ModelError, OutOfMemory
from omni_jobs.jobs import Failure, Jobs, StoredArtifact
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    DIAMOND,
    REF,
    claim,
    complete_all,
    done,
    fail,
    failed,
    failures,
    new_job,
    pass_time,
    register,
    register_each,
    release,
    stages,
    submit_one,
)


def test_a_retryable_error_is_tried_again_after_a_pause(jobs_or_forgetful: Jobs, database_url: str) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    outcome = fail(jobs, failed(claimed, "w", OutOfMemory()))
    assert (outcome.won, outcome.state) == (True, StageRunState.QUEUED)
    assert not outcome.queues
    stage = jobs.get(submitted.job_id).stages[0]
    assert (stage.status, stage.reason, stage.attempt) == (StageRunState.QUEUED, "retry_backoff", 1)
    assert [(error.code, error.attempt, error.worker) for error in stage.errors] == [("out_of_memory", 1, "w")]
    [error] = stage.errors
    assert None not in (error.started_at, stage.started_at)
    assert abs(error.started_at - stage.started_at) < timedelta(milliseconds=1)  # type: ignore[operator]
    assert claim(jobs, "w") == []
    database = Database(database_url)
    pass_time(database, 2.0)
    database.close()
    (claimed,) = claim(jobs, "w")
    assert (claimed.attempt, failures(jobs, claimed)) == (2, {"out_of_memory": 1})
    assert jobs.get(submitted.job_id).stages[0].reason is None


def test_the_last_attempt_fails_the_job(jobs: Jobs, database: Database) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w", lease_s=10_000)
    for _ in range(3):
        (claimed,) = claim(jobs, "w")
        fail(jobs, failed(claimed, "w", OutOfMemory("no room for 12 GiB")))
        pass_time(database, 100)
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert (view.error.code, view.error.message, view.error.stage) == ("out_of_memory", "no room for 12 GiB", "first")
    assert stages(jobs, submitted.job_id) == {"first": "failed", "second": "cancelled"}
    assert [error.attempt for error in view.stages[0].errors] == [1, 2, 3]
    assert view.result is None


def test_a_final_error_fails_the_job_at_once_and_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    failure = failed(claimed, "w", ModelError("bad audio", field="audio", key="k"))
    assert fail(jobs, failure) == fail(jobs, failure)
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert (view.error.field, view.error.key) == ("audio", "k")
    assert len(view.stages[0].errors) == 1
    assert not jobs.report([done(claimed, "w")])[0].won
    assert not fail(jobs, Failure(claimed.stage_run_id, 1, "other", ModelError())).won


def test_a_failed_job_stops_what_still_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job(DIAMOND))
    register_each(jobs, DIAMOND)
    complete_all(jobs, "a")
    (b,), (c,) = claim(jobs, "b"), claim(jobs, "c")
    assert jobs.renew("c", 60).wishes.unwanted == []
    fail(jobs, failed(b, "b", ModelError()))
    assert stages(jobs, submitted.job_id) == {"a": "succeeded", "b": "failed", "c": "running", "d": "cancelled"}
    assert jobs.renew("c", 60).wishes.unwanted == [c.stage_run_id]
    (outcome,) = jobs.report([done(c, "c", artifacts=[StoredArtifact("a", "text/plain", REF)])])
    assert not outcome.won
    assert jobs.renew("c", 60).wishes.unwanted == []
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.stages[2].status == StageRunState.CANCELLED
    assert view.artifacts == []


def test_what_is_released_is_queued_again_without_a_failure(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w1")
    register(jobs, "w2")
    (claimed,) = claim(jobs, "w1")
    release(jobs, [(claimed.stage_run_id, 1)], "w1")
    assert jobs.get(submitted.job_id).stages[0].worker is None
    (again,) = claim(jobs, "w2")
    assert (again.attempt, failures(jobs, again)) == (2, {})
    assert release(jobs, [(claimed.stage_run_id, 1)], "w1") == set()
    assert not jobs.report([done(claimed, "w1")])[0].won
    assert jobs.report([done(again, "w2")])[0].won


def test_a_retired_worker_leaves_nothing(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    assert release(jobs, [(claimed.stage_run_id, 1)], "w") == {"echo.first"}
    claim(jobs, "w")
    assert jobs.retire_worker("w") == {"echo.first"}
    assert jobs.workers() == []
    assert jobs.retire_worker("w") == set()
    with pytest.raises(Fenced):
        jobs.renew("w", 60)
