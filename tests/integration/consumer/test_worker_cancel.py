"""Cancel reaches what runs, within about a second; what does not stop costs its worker, not its job."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView
from tests.integration.echo_stack import EchoStack

ROUNDS, AT_ONCE = 8, 8


@pytest.fixture
def stack(database_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    """A slow heartbeat: cancels must not wait for it."""
    options = {"OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_HEARTBEAT_S": "20", "OMNI_JOBS_STOP_LIMIT_S": "1"}
    stack = EchoStack(tmp_path, database_url, valkey_url, options)
    yield stack
    stack.close()


def test_cancel_frees_the_slot_soon(stack: EchoStack) -> None:
    stack.start("first")
    took: list[float] = []
    for _ in range(ROUNDS):
        ids = [stack.submit(first={"delay_s": 59}) for _ in range(AT_ONCE)]
        for job_id in ids:
            stack.running(job_id, "first")
        began: dict[str, float] = {}
        for job_id in ids:
            time.sleep(random.uniform(0, 0.1))  # not all at the same moment of the worker's look
            began[job_id] = time.monotonic()
            assert stack.jobs.cancel(job_id) is JobState.CANCELLING
        while began:
            for job_id in list(began):
                if stack.jobs.get(job_id).status is JobState.CANCELLED:
                    took.append(time.monotonic() - began.pop(job_id))
            time.sleep(0.005)
            assert all(time.monotonic() - at < 30 for at in began.values()), "a cancelled job goes on"
    took.sort()
    print(f"cancel -> cancelled, {len(took)} jobs: p50 {took[len(took) // 2]:.2f} s, p99 {took[-1]:.2f} s (the most)")


def test_cancel_and_the_end_have_one_winner(stack: EchoStack) -> None:
    """Cancels sent about when the stage run ends: each job is one of the two, and its stage runs agree."""
    stack.start("first", "second")
    ids = [stack.submit(first={"delay_s": 0.5}, second={"delay_s": 0.0}) for _ in range(AT_ONCE)]
    stack.until(lambda: all(stack.jobs.get(job_id).stages[0].started_at for job_id in ids) or None, 60)
    states = {}
    for job_id in ids:
        time.sleep(0.06)
        states[job_id] = stack.jobs.cancel(job_id)
    for job_id, told in states.items():
        view = stack.ended(job_id)
        assert view.status in (JobState.CANCELLED, JobState.COMPLETED)
        if told is not JobState.CANCELLING:
            assert view.status is told, "what a cancel answered is final"
        ends = {run.status for run in view.stages}
        if view.status is JobState.COMPLETED:
            assert ends == {StageRunState.SUCCEEDED}
        else:
            assert StageRunState.CANCELLED in ends
            assert view.result is None


def test_what_does_not_stop_ends_with_its_worker(stack: EchoStack) -> None:
    worker = stack.launch("first", fault="deaf")
    stack.serving(worker)
    job_id = stack.submit()
    stack.running(job_id, "first")
    assert stack.jobs.cancel(job_id) is JobState.CANCELLING
    view = stack.until(lambda: _final(stack.jobs.get(job_id)), 30)
    assert view.status is JobState.CANCELLED
    assert worker.process.wait(60) == 1
    assert "has not stopped within 1 s" in worker.log.read_text()


def test_reads_that_hang_stop_the_worker_and_no_job_is_lost(sqlite_url: str, valkey_url: str, tmp_path: Path) -> None:
    """Each leaves a thread behind when its time is over; before there is none left the worker starts anew."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url)
    try:
        stack.start("first")
        hanging = stack.launch("second", fault="hang")  # reads the first stage's payloads
        stack.serving(hanging)
        ids = [stack.submit(first={"payload_bytes": 20_000}) for _ in range(5)]
        assert hanging.process.wait(60) == 1
        assert "storage calls hang" in hanging.log.read_text()
        stack.serving(stack.launch("second", hanging.slot))
        ends = [stack.ended(job_id) for job_id in ids]
        assert all(view.status.is_final for view in ends)
        assert stack.ended(stack.submit(first={"payload_bytes": 20_000})).status is JobState.COMPLETED
    finally:
        stack.close()


def _final(view: JobView) -> JobView | None:
    return view if view.status.is_final else None
