"""Slots that are kept for high jobs, with real workers: others hold all the rest, and a high job starts at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.priority import Priority
from omni_jobs.states import JobState, StageRunState
from tests.integration.echo_stack import PIPELINE, EchoStack

CONFIG = PIPELINE.replace("slots: 8", "slots: 2\n    slots_for_high: 1").replace("time_limit_s: 2", "time_limit_s: 60")
LONG = {"delay_s": 50}


sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def stack(database_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    """Workers that hear doorbells and poll never."""
    stack = EchoStack(tmp_path, database_url, valkey_url, {"OMNI_JOBS_POLL_S": "60"}, config=CONFIG)
    yield stack
    stack.close()


def ready(stack: EchoStack) -> None:
    """Wait until the workers pop doorbells."""
    for worker in stack.workers:
        stack.until(lambda log=worker.log: "ready." in log.read_text() or None, 60)  # type: ignore[misc]


def worker_of(stack: EchoStack, job_id: str, stage: str = "first") -> str | None:
    return next(run.worker for run in stack.jobs.get(job_id).stages if run.name == stage)


def states(stack: EchoStack, *job_ids: str) -> list[StageRunState]:
    return [stack.jobs.get(job_id).stages[0].status for job_id in job_ids]


def test_a_high_job_goes_through_while_others_hold_all_other_slots(stack: EchoStack) -> None:
    stack.start("first", "second")
    ready(stack)
    low = [stack.submit(priority=Priority.LOW, first=LONG) for _ in range(3)]
    stack.running(low[0], "first")
    passing = stack.submit(second=LONG)  # normal: waits at the first stage, as the low ones do
    for _ in range(3):
        high = stack.submit(priority=Priority.HIGH)
        assert stack.ended(high, within_s=30).status == JobState.COMPLETED
    assert states(stack, *low, passing) == ["running", "queued", "queued", "queued"]
    assert not any(stack.app.broker.depths()[f"echo@1.{stage}.high"] for stage in ("first", "second"))


@sqlite_only
def test_a_kept_slot_that_is_full_waits_for_its_own_end_and_serves_the_next(stack: EchoStack) -> None:
    stack.start("first", "second")
    ready(stack)
    low = stack.submit(priority=Priority.LOW, first=LONG)
    stack.running(low, "first")
    holds = stack.submit(priority=Priority.HIGH, first={"delay_s": 3})
    stack.running(holds, "first")
    waits = stack.submit(priority=Priority.HIGH)
    assert states(stack, low, holds, waits) == ["running", "running", "queued"]
    assert stack.ended(holds).status == JobState.COMPLETED
    assert stack.ended(waits).status == JobState.COMPLETED
    assert states(stack, low) == ["running"]


@sqlite_only
def test_doorbells_are_left_to_workers_with_room_for_any_job(stack: EchoStack) -> None:
    """One may still come to a busy worker: it began to wait for it while it had room."""
    stack.start("first", "first", "second")
    ready(stack)
    low = [stack.submit(ring=False, priority=Priority.LOW, first=LONG) for _ in range(3)]
    for job_id in low[:2]:
        stack.app.broker.ring(["echo.first"])
        stack.app.broker.ring(["echo.first"])
        stack.running(job_id, "first")
    assert worker_of(stack, low[0]) != worker_of(stack, low[1])
    for _ in range(4):
        stack.app.broker.ring(["echo.first"])
    high = stack.submit(priority=Priority.HIGH)
    assert stack.ended(high, within_s=30).status == JobState.COMPLETED
    assert stack.app.broker.depth("echo.first") >= 2
    assert states(stack, *low) == ["running", "running", "queued"]


@sqlite_only
def test_high_jobs_that_one_worker_cannot_hold_are_passed_on(stack: EchoStack) -> None:
    """One doorbell for four high jobs, and two workers with two slots each."""
    stack.start("first", "first")
    ready(stack)
    high = [stack.submit(ring=False, priority=Priority.HIGH, first=LONG) for _ in range(4)]
    stack.app.broker.ring(["echo.first.high"])
    for job_id in high:
        stack.running(job_id, "first")
    assert len({worker_of(stack, job_id) for job_id in high}) == 2


@sqlite_only
def test_a_worker_with_one_slot_keeps_none_and_still_hears_high_jobs(stack: EchoStack) -> None:
    stack.launch("first", concurrency=1)
    stack.start("second")
    stack.serving(stack.workers[0])
    ready(stack)
    assert [(worker.stage, worker.slots) for worker in stack.jobs.workers()] == [("first", 1), ("second", 2)]
    low = stack.submit(priority=Priority.LOW)
    assert stack.ended(low).status == JobState.COMPLETED
    high = stack.submit(priority=Priority.HIGH)
    assert stack.ended(high).status == JobState.COMPLETED
