"""Jobs that are cancelled, on SQLite and on PostgreSQL."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from omni_jobs.errors import NotFound, OutOfMemory
from omni_jobs.jobs import Claim, Jobs, Outcome
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    complete_all,
    done,
    fail,
    failed,
    new_job,
    register,
    register_each,
    release,
    stages,
    submit_one,
)


def test_queued_work_is_cancelled_at_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert claim(jobs, "w") == []
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.get(submitted.job_id).finished_at is not None


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "lost"])
def test_running_work_is_asked_to_stop(jobs_or_forgetful: Jobs, ending: str) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w", slot="slot")
    (claimed,) = claim(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert jobs.get(submitted.job_id).finished_at is None
    assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
    assert jobs.renew("w", 60).wishes.unwanted == [claimed.stage_run_id]
    match ending:
        case "complete":
            assert not jobs.report([done(claimed, "w", result={"a": 1})])[0].won
        case "fail":
            outcome = fail(jobs, failed(claimed, "w", OutOfMemory()))
            assert outcome == Outcome(won=True, queues=set(), state=StageRunState.CANCELLED)
        case "release":
            assert release(jobs, [(claimed.stage_run_id, 1)], "w") == set()
        case "lost":
            assert register(jobs, "w2", slot="slot") == set()
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.CANCELLED
    assert view.finished_at is not None
    assert view.result is None
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.rescue().freed == 0


def test_cancelling_waits_for_the_last_that_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job(DIAMOND))
    register_each(jobs, DIAMOND)
    complete_all(jobs, "a")
    (b,), (c,) = claim(jobs, "b"), claim(jobs, "c")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert release(jobs, [(b.stage_run_id, b.attempt)], "b") == set()
    assert jobs.get(submitted.job_id).status == JobState.CANCELLING
    assert release(jobs, [(c.stage_run_id, c.attempt)], "c") == set()
    assert jobs.get(submitted.job_id).status == JobState.CANCELLED


def test_cancel_comes_too_late(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job({"first": []}))
    register(jobs, "w")
    complete_all(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.COMPLETED
    for unknown in ("job-unknown", "\x00", "\ud800"):
        with pytest.raises(NotFound):
            jobs.cancel(unknown)


def test_cancel_and_completion_have_one_winner(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(claimed: Claim) -> JobState:
        both.wait()
        return jobs.cancel(claimed.job_id)

    def complete(claimed: Claim) -> bool:
        both.wait()
        return jobs.report([done(claimed, "w")])[0].won

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submit_one(jobs, new_job({"first": []}))
            (claimed,) = claim(jobs, "w")
            cancelled, completed = pool.submit(cancel, claimed), pool.submit(complete, claimed)
            state = jobs.get(claimed.job_id).status if completed.result() else cancelled.result()
            final = jobs.get(claimed.job_id).status
            assert final == (JobState.COMPLETED if completed.result() else JobState.CANCELLED)
            assert state in (final, JobState.CANCELLING)


def test_cancel_and_claim_agree(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(job_id: str) -> JobState:
        both.wait()
        return jobs.cancel(job_id)

    def take() -> list[Claim]:
        both.wait()
        return claim(jobs, "w")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submitted = submit_one(jobs, new_job())
            cancelled, taken = pool.submit(cancel, submitted.job_id), pool.submit(take)
            if taken.result():
                assert cancelled.result() == JobState.CANCELLING
                assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
            else:
                assert cancelled.result() == JobState.CANCELLED
