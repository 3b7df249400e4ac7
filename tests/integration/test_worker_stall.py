"""A worker that lives and does not consume notices it itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from omni_jobs.db import Database
from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    return url


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
        ids = [stack.submit(first={"delay_s": 8}) for _ in range(20)]  # 8 slots: three rounds
        for job_id in ids:
            assert stack.ended(job_id, within_s=60).status is JobState.COMPLETED
        assert (full.process.poll(), idle.process.poll()) == (None, None)
    finally:
        stack.close()
