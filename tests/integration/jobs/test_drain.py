"""Workers that are drained, each by itself, on both databases."""

import pytest

from omni_jobs.errors import NotFound
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs, NewWorker
from tests.integration.job_steps import claim, new_job, register, submit_one


def drained(jobs: Jobs) -> dict[str, bool]:
    return {worker.id: worker.drained_at is not None for worker in jobs.workers()}


def test_a_worker_learns_that_it_is_drained_and_of_its_end_with_its_renewals(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    register(jobs, "other")
    jobs.drain("w", by="key-1")
    assert drained(jobs) == {"w": True, "other": False}
    assert (jobs.renew("w", 60).is_paused, jobs.renew("other", 60).is_paused) == (True, False)
    [first] = [worker.drained_at for worker in jobs.workers() if worker.id == "w"]
    jobs.drain("w", by="key-2")
    assert [worker.drained_at for worker in jobs.workers() if worker.id == "w"] == [first]
    told = jobs.undrain("w", by="key-1")
    assert (told.id, told.pipeline, told.stage, told.drained_at) == ("w", "echo", "first", None)
    assert jobs.undrain("w", by="key-2") == told
    assert not jobs.renew("w", 60).is_paused
    found = [(act.actor, act.action, act.tenant) for act in reversed(jobs.acts())]
    assert found == [("key-1", "drain", None), ("key-1", "undrain", None)]


def test_a_worker_is_named_by_its_slot_as_well(jobs: Jobs) -> None:
    register(jobs, "w", slot="echo.first@host")
    register(jobs, "other", slot="w")  # an id is a worker's before a slot is
    told = jobs.drain("echo.first@host")
    assert (told.id, told.slot, told.drained_at is None) == ("w", "echo.first@host", False)
    assert drained(jobs) == {"w": True, "other": False}
    assert jobs.undrain("w").id == "w"
    assert drained(jobs) == {"w": False, "other": False}


def test_a_worker_that_is_drained_while_it_loads_stays_so_when_it_serves(jobs: Jobs) -> None:
    worker = NewWorker("w", "echo.first@host", StageId(PipelineId("echo", "d"), "first"), "host", 1, 4, "1")
    jobs.register_worker(worker, 60.0, loading=True)
    jobs.drain("w")
    jobs.register_worker(worker, 60.0)
    assert drained(jobs) == {"w": True}
    assert jobs.renew("w", 60).is_paused


def test_a_worker_of_a_paused_stage_stays_paused_when_it_is_resumed(jobs: Jobs) -> None:
    register(jobs, "w")
    stage = StageId(PipelineId("echo", "d"), "first")
    jobs.pause(stage)
    jobs.drain("w")
    jobs.undrain("w")
    assert jobs.renew("w", 60).is_paused
    jobs.drain("w")
    jobs.resume(stage)
    assert jobs.renew("w", 60).is_paused


def test_a_job_whose_only_worker_is_drained_says_that_it_has_none(jobs: Jobs) -> None:
    register(jobs, "w")
    running, waiting = submit_one(jobs, new_job()).job_id, submit_one(jobs, new_job()).job_id
    [claimed] = claim(jobs, "w", 1)
    assert claimed.job_id == running
    jobs.drain("w")
    assert jobs.get(running).status == "in_progress"
    told = jobs.get(waiting).waiting
    assert told is not None
    assert (told.reason, "are drained" in told.message) == ("no_worker", True)
    register(jobs, "another")
    told = jobs.get(waiting).waiting
    assert told is not None
    assert told.reason == "turn"


def test_who_starts_in_the_slot_of_a_drained_worker_is_not_drained(jobs: Jobs) -> None:
    register(jobs, "w")
    jobs.drain("w")
    jobs.retire_worker("w")
    with pytest.raises(NotFound):
        jobs.drain("w")
    with pytest.raises(NotFound):
        jobs.undrain("w")
    register(jobs, "w")
    assert drained(jobs) == {"w": False}
