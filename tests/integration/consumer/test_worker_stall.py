"""A worker that lives and does not consume notices it itself."""

import signal
from pathlib import Path

import pytest

from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack


def test_a_worker_that_no_longer_pops_ends_and_its_successor_does_the_work(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_STALL_AFTER_S": "5"})
    try:
        stack.start("second")
        stalled = stack.launch("first", fault="stall")
        stack.serving(stalled)
        assert stack.ended(stack.submit()).status is JobState.COMPLETED
        stalled.process.send_signal(signal.SIGUSR1)
        ids = [stack.submit() for _ in range(3)]  # a pop that was on its way takes one at most
        assert stalled.process.wait(60) == 1
        assert "none was taken" in stalled.log.read_text()
        stack.serving(stack.launch("first", stalled.slot))
        assert {stack.ended(job_id).status for job_id in ids} == {JobState.COMPLETED}
        assert all(worker.process.poll() is None for worker in stack.workers if worker is not stalled)
    finally:
        stack.close()


def test_an_idle_worker_and_a_full_one_are_alive(sqlite_url: str, valkey_url: str, tmp_path: Path) -> None:
    """Nothing to pop, or no room for it, for longer than the limit."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_STALL_AFTER_S": "5"})
    try:
        full, idle = stack.start("first", "second")
        ids = [stack.submit(first={"delay_s": 6.5}) for _ in range(12)]  # 8 slots: two rounds
        for job_id in ids:
            assert stack.ended(job_id, within_s=60).status is JobState.COMPLETED
        assert (full.process.poll(), idle.process.poll()) == (None, None)
    finally:
        stack.close()


def test_a_worker_whose_consumer_was_set_to_another_queue_ends(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """``celery control cancel_consumer`` and ``add_consumer``: pops of another queue say nothing about its own."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_STALL_AFTER_S": "5"})
    try:
        (first,) = stack.start("first")
        assert stack.until(lambda: stack.app.control.ping([first.slot], timeout=1) or None, 60)
        for order in (
            lambda: stack.app.control.cancel_consumer("echo.first", destination=[first.slot], reply=True),
            lambda: stack.app.control.add_consumer("echo.second", destination=[first.slot], reply=True),
        ):
            assert stack.until(lambda order=order: order() or None, 60)  # type: ignore[misc]
        ids = [stack.submit() for _ in range(3)]
        assert first.process.wait(60) == 1
        assert "none was taken" in first.log.read_text()
        stack.serving(stack.launch("first", first.slot))
        stack.start("second")
        assert {stack.ended(job_id).status for job_id in ids} == {JobState.COMPLETED}
    finally:
        stack.close()


@pytest.mark.parametrize("when", ["starts", "runs"])
def test_a_queue_whose_key_is_no_list_is_waited_for(
    sqlite_url: str, valkey_url: str, tmp_path: Path, when: str
) -> None:
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_STALL_AFTER_S": "5"})
    try:
        key = f"{stack.prefix}echo.first"
        with stack.redis() as broker:
            if when == "starts":
                broker.set(key, "mine")
            first, _ = stack.start("first", "second")
            if when == "runs":
                stack.until(lambda: "ready." in first.log.read_text() or None, 60)
                broker.set(key, "mine")
            stack.until(lambda: first.log.read_text().count("in the broker is no list") > 3 or None, 60)
            assert first.process.poll() is None
            broker.delete(key)
        assert stack.ended(stack.submit(publish=False), within_s=60).status is JobState.COMPLETED
        assert first.process.poll() is None
    finally:
        stack.close()
