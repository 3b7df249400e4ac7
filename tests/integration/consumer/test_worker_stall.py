"""A worker whose stage's event loop stands still notices it itself."""

import signal
from pathlib import Path

from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack


def test_a_worker_whose_event_loop_stands_still_ends_and_its_successor_does_the_work(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """Its ledger renews the lease all the time, so nobody else would notice."""
    options = {"OMNI_JOBS_STALL_AFTER_S": "5", "OMNI_JOBS_LEASE_S": "120", "OMNI_JOBS_HEARTBEAT_S": "1"}
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, options)
    try:
        stack.start("second")
        stalled = stack.launch("first", fault="stall")
        stack.serving(stalled)
        assert stack.ended(stack.submit()).status is JobState.COMPLETED
        held = stack.submit(first={"delay_s": 2})
        stack.running(held, "first")
        stalled.process.send_signal(signal.SIGUSR1)
        ids = [stack.submit() for _ in range(3)]
        assert stalled.process.wait(60) == 1
        assert "the stage's event loop has not turned" in stalled.log.read_text()
        stack.serving(stack.launch("first", stalled.slot))
        assert {stack.ended(job_id).status for job_id in [held, *ids]} == {JobState.COMPLETED}
        assert stack.jobs.get(held).stages[0].attempt == 2
        assert all(worker.process.poll() is None for worker in stack.workers if worker is not stalled)
    finally:
        stack.close()
