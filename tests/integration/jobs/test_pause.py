"""Stages that are paused, on both databases."""

from concurrent.futures import ThreadPoolExecutor

from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs, Renewal, Wishes
from tests.integration.job_steps import (
    claim,
    new_job,
    register,
    submit_one,
)

FIRST = StageId(PipelineId("echo", ""), "first")


def test_a_worker_learns_of_a_pause_and_of_its_end_with_its_renewals(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    register(jobs, "other", "second")
    assert jobs.renew("w", 60) == Renewal(Wishes([], {}), is_paused=False)
    jobs.pause(FIRST)
    assert jobs.renew("w", 60) == Renewal(Wishes([], {}), is_paused=True)
    assert jobs.renew("other", 60) == Renewal(Wishes([], {}), is_paused=False)
    assert ("echo", "first") in jobs.paused_stages()
    jobs.resume(FIRST)
    assert jobs.renew("w", 60) == Renewal(Wishes([], {}), is_paused=False)
    assert ("echo", "first") not in jobs.paused_stages()


def test_a_pause_keeps_its_first_time_and_its_end_may_be_asked_for_again(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    jobs.pause(FIRST)
    paused = jobs.paused_stages()
    jobs.pause(FIRST)
    assert jobs.paused_stages() == paused
    assert set(paused) == {("echo", "first")}
    jobs.resume(FIRST)
    jobs.resume(FIRST)
    assert jobs.paused_stages() == {}


def test_administrators_may_pause_and_resume_at_once(jobs: Jobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: (jobs.pause if n % 2 else jobs.resume)(FIRST), range(40)))
        list(pool.map(lambda _: jobs.pause(FIRST), range(8)))
    assert ("echo", "first") in jobs.paused_stages()


def test_what_runs_goes_on_and_only_the_workers_hold_back(jobs: Jobs) -> None:
    register(jobs, "w")
    submit_one(jobs, new_job())
    submit_one(jobs, new_job())
    [claimed] = claim(jobs, "w", 1)
    jobs.pause(FIRST)
    assert jobs.renew("w", 60) == Renewal(Wishes([], {}), is_paused=True)  # it stops nothing
    view = jobs.get(claimed.job_id)
    assert (view.status, view.waiting) == ("in_progress", None)
    assert claim(jobs, "w") != []  # a claim knows nothing of pauses
