"""``omni-jobs workers drain --wait`` on real workers: it returns once they run nothing, and claim nothing."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.states import JobState
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack

WITHIN_S = 60.0


@pytest.fixture
def stack(database_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, database_url, valkey_url)
    yield stack
    stack.close()


@pytest.fixture
def api(stack: EchoStack) -> Iterator[ApiServer]:
    with serve(stack.settings.model_copy(update={"min_free_bytes": 0})) as server:
        yield server


class Command(threading.Thread):
    """A command that runs beside the test."""

    def __init__(self, api: ApiServer, *arguments: str) -> None:
        super().__init__()
        self._arguments = [*arguments, "--url", f"http://{api.host}:{api.port}"]
        self.start()

    def run(self) -> None:
        self._result = CliRunner().invoke(app, self._arguments, env={"COLUMNS": "200"})

    def ended(self) -> Result:
        self.join(WITHIN_S)
        assert not self.is_alive()
        return self._result


def test_a_host_is_emptied_by_one_command(stack: EchoStack, api: ApiServer) -> None:
    first, second = stack.start("first", "second")
    [host] = {worker.host for worker in stack.jobs.workers()}
    jobs = [stack.submit(first={"delay_s": 2}) for _ in range(12)]  # of which the worker holds 8
    stack.running(jobs[0], "first")
    emptied = Command(api, "workers", "drain", "--host", host, "--wait", "--json").ended()
    assert emptied.exit_code == 0, emptied.output
    shown = json.loads(emptied.stdout)
    assert {each["slot"] for each in shown} == {first.slot, second.slot}
    assert all(each["drained_at"] for each in shown)
    assert "stage runs left" in emptied.stderr
    before = [(worker.running, worker.claimed_at) for worker in stack.jobs.workers()]
    assert [running for running, _ in before] == [0, 0]
    waiting = stack.submit()
    renew(stack, 3)
    assert [(worker.running, worker.claimed_at) for worker in stack.jobs.workers()] == before
    assert stack.jobs.get(waiting).status is JobState.QUEUED
    resumed = Command(api, "workers", "resume", "--host", host).ended()
    assert resumed.stdout.splitlines() == [f"{worker.slot}: not drained" for worker in (first, second)]
    assert {stack.ended(job).status for job in [*jobs, waiting]} == {JobState.COMPLETED}


def test_another_host_goes_on(stack: EchoStack, api: ApiServer) -> None:
    emptied, other = stack.launch("first", host="gpu-a"), stack.launch("first", host="gpu-b")
    for worker in (emptied, other):
        stack.serving(worker)
    drained = Command(api, "workers", "drain", "--host", "gpu-a", "--wait", "--json").ended()
    assert drained.exit_code == 0, drained.output
    assert [each["slot"] for each in json.loads(drained.stdout)] == [emptied.slot]
    by_slot = {worker.slot: worker for worker in stack.jobs.workers()}
    assert {slot: worker.host for slot, worker in by_slot.items()} == {emptied.slot: "gpu-a", other.slot: "gpu-b"}
    assert by_slot[other.slot].drained_at is None
    jobs = [stack.submit() for _ in range(10)]
    stack.until(lambda: all(stack.jobs.get(job).stages[0].status == "succeeded" for job in jobs) or None, WITHIN_S)
    assert {stack.jobs.get(job).stages[0].worker for job in jobs} == {by_slot[other.slot].id}


def test_a_wait_ends_with_its_time_with_the_worker_and_with_a_resume(stack: EchoStack, api: ApiServer) -> None:
    [worker] = stack.start("first")
    job = stack.submit(first={"delay_s": 50})
    stack.running(job, "first")
    drain = ("workers", "drain", worker.slot, "--wait")
    late = Command(api, *drain, "--timeout", "0.5").ended()
    assert (late.exit_code, late.stdout) == (Exit.TIMEOUT, "")
    assert f"1 stage runs left ({worker.slot}: 1); the workers stay drained" in late.stderr
    waits = Command(api, *drain)
    renew(stack, 8)  # so that it has looked
    stack.jobs.undrain(worker.slot)
    refused = waits.ended()
    assert (refused.exit_code, "was resumed by somebody" in refused.stderr) == (Exit.FAILED, True)
    waits = Command(api, *drain)
    renew(stack, 8)
    assert worker.stop() == 0
    ended = waits.ended()
    assert (ended.exit_code, ended.stdout) == (0, f"{worker.slot}: empty\n")


def renew(stack: EchoStack, times: int) -> None:
    """Wait until every worker has renewed its lease so often."""
    for _ in range(times):
        seen = {(worker.id, worker.renewed_at) for worker in stack.jobs.workers()}
        stack.until(
            partial(lambda seen: not any((w.id, w.renewed_at) in seen for w in stack.jobs.workers()) or None, seen),
            WITHIN_S,
        )
