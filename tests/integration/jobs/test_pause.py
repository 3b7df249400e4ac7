"""Stages that are paused, on both databases."""

from concurrent.futures import ThreadPoolExecutor

from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs, NewWorker, Renewal, Wishes
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


def test_a_version_is_paused_alone_or_with_all_others(jobs: Jobs) -> None:
    old, new = (StageId(PipelineId("echo", digest), "first") for digest in ("d1", "d2"))
    jobs.tell_versions([(old.pipeline, "1"), (new.pipeline, "2")])
    for stage, version in ((old, "1"), (new, "2")):
        jobs.register_worker(NewWorker(f"w{version}", f"w{version}", stage, "host", 1, 4, version), 60)

    def paused() -> list[bool]:
        """Whether the workers of each version learn of a pause."""
        return [jobs.renew(worker, 60).is_paused for worker in ("w1", "w2")]

    jobs.pause(old, version="1", by="key-1")
    jobs.pause(old, version="1", by="key-1")
    assert (paused(), set(jobs.paused_stages())) == ([True, False], {("echo@1", "first")})
    jobs.pause(FIRST, by="key-1")
    jobs.resume(old, version="1", by="key-1")
    assert (paused(), set(jobs.paused_stages())) == ([True, True], {("echo", "first")})
    jobs.pause(new, version="2", by="key-1")
    jobs.resume(FIRST, by="key-1")
    assert (paused(), jobs.paused_stages()) == ([False, False], {})
    jobs.resume(FIRST, by="key-1")
    assert [(each.action, each.target) for each in reversed(jobs.acts())] == [
        ("pause", "echo@1.first"),
        ("pause", "echo.first"),
        ("resume", "echo@1.first"),
        ("pause", "echo@2.first"),
        ("resume", "echo.first"),
    ]


def test_a_job_says_which_version_is_paused(jobs: Jobs) -> None:
    register(jobs, "w")
    job_id = submit_one(jobs, new_job()).job_id
    version = jobs.get(job_id).pipeline_version
    jobs.pause(FIRST, version="other")
    waiting = jobs.get(job_id).waiting
    assert waiting is not None
    assert waiting.reason == "turn"
    jobs.pause(FIRST, version=version)
    waiting = jobs.get(job_id).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.message) == ("paused", f"stage first is paused for version {version}")
