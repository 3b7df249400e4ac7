"""The rescuer as a process, and what a round survives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from omni_jobs.errors import NotFound
from omni_jobs.jobs import DatabasePresence, Jobs, NewWorker, RescueResult
from omni_jobs.maintenance.rescuer import Rescuer
from omni_jobs.states import StageRunState
from omni_jobs.storage import input_key, open_store, payload_key
from tests.integration.echo_stack import EchoStack
from tests.integration.job_steps import pass_time

RESCUER = (
    "from omni_jobs.maintenance.rescuer import run; from omni_jobs.settings import read_settings; run(read_settings())"
)


@pytest.fixture
def stack(valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, f"sqlite:///{tmp_path / 'jobs.sqlite'}", valkey_url)
    yield stack
    stack.close()


def test_waits_for_the_schema_rings_for_what_it_frees_and_ends_on_sigterm(stack: EchoStack) -> None:
    environment = {**os.environ, **stack.variables}
    process = subprocess.Popen([sys.executable, "-c", RESCUER], env=environment)
    try:
        time.sleep(0.5)  # its first looks find no schema
        stack.database.migrate()
        _lost_worker(stack)
        stack.until(lambda: stack.app.broker.depths()["echo@1.first"] or None, 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_it_prunes_beside_its_rounds(stack: EchoStack) -> None:
    """In the same process: a job whose time is over goes, and so do its objects."""
    stack.database.migrate()
    job_id = stack.submit(ring=False)
    stack.jobs.cancel(job_id)
    store = open_store(stack.settings)
    store.put(input_key(job_id, 0), [b"medium"])
    other = f"job-{uuid4().hex}"
    store.put(payload_key(other, "first", 1), [b"of a lost attempt"])
    keep = {f"OMNI_JOBS_KEEP_{kind}_S": "0" for kind in ("PAYLOADS", "INPUTS", "ARTIFACTS", "EVENTS", "JOBS")}
    times = {"OMNI_JOBS_PRUNE_EVERY_S": "0.1", "OMNI_JOBS_SWEEP_EVERY_S": "1", "OMNI_JOBS_ORPHAN_AFTER_S": "1"}
    process = subprocess.Popen([sys.executable, "-c", RESCUER], env={**os.environ, **stack.variables, **keep, **times})
    try:
        stack.until(lambda: not list(store.list()) or None, 30)
        with pytest.raises(NotFound):
            stack.jobs.get(job_id)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_round_survives_a_broker_that_is_away(
    stack: EchoStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stack.database.migrate()
    job_id = _lost_worker(stack)
    broken = EchoStack(_sibling(tmp_path), stack.database_url, "redis://127.0.0.1:1/0")
    Rescuer(broken.jobs, broken.app.broker, 1).round()
    assert "rescuer: the broker takes no doorbell" in caplog.text
    assert stack.jobs.get(job_id).stages[0].status == StageRunState.QUEUED
    broken.close()


def test_a_bug_in_one_round_does_not_end_the_next(stack: EchoStack, caplog: pytest.LogCaptureFixture) -> None:
    stack.database.migrate()
    _lost_worker(stack)
    rounds: list[str] = []

    class Buggy(Jobs):
        def rescue(self, presence: DatabasePresence | None = None) -> RescueResult:
            rounds.append("")
            if len(rounds) == 1:
                raise RuntimeError("nobody thought of this")
            rescuer.stop()
            return super().rescue(presence)

    rescuer = Rescuer(Buggy(stack.database), stack.app.broker, every_s=0.01)
    rescuer.run(stack.database)
    assert len(rounds) == 2
    assert stack.app.broker.depths()["echo@1.first"] == 1
    assert "nobody thought of this" in caplog.text


def _lost_worker(stack: EchoStack) -> str:
    """A job that a worker runs whose lease is over."""
    job_id = stack.submit(ring=False)
    echo = stack.pipelines["echo"]
    worker = NewWorker("worker-x", "slot", echo.stage_id("first"), "host", 1, 8, echo.version)
    stack.jobs.register_worker(worker, lease_s=60)
    assert len(stack.jobs.claim("worker-x", 1).claims) == 1
    pass_time(stack.database, 60)
    return job_id


def _sibling(directory: Path) -> Path:
    sibling = directory / "sibling"
    sibling.mkdir()
    return sibling
