"""A real model's job outlives its workers; a stage run executed twice gives the same."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.client import Client
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView
from tests.e2e.cases import Case, cases
from tests.e2e.conftest import omni_stack
from tests.e2e.test_equals_transformers import assert_equal
from tests.oracles.reference import Reference
from tests.services.checkpoint import TinyCheckpoints

pytestmark = pytest.mark.timeout(900)

LONG = 400  # tokens: time enough to be killed in


@pytest.fixture(scope="module")
def stack(e2e_dir: Path, tiny_checkpoints: TinyCheckpoints) -> Iterator[tuple[EmbeddedStack, Client]]:
    with omni_stack(e2e_dir / "faults", tiny_checkpoints(0)) as started:
        yield started


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
def test_kill_9_of_its_worker_does_not_lose_the_job(
    stack: tuple[EmbeddedStack, Client], stage: str, tiny_checkpoints: TinyCheckpoints
) -> None:
    """The worker dies with the stage run in its hands; its successor runs it again, to the same result."""
    embedded, client = stack
    case = _slow_in(stage)
    job = client.submit(case)
    _wait_for(client, job.id, stage, StageRunState.RUNNING)
    _kill_worker(embedded, stage)
    job = client.wait(job.id, timeout=400)
    assert job.status is JobState.COMPLETED, job.error
    killed = _stage(job, stage)
    assert killed.attempt == 2, "it was executed twice"
    assert [error.code for error in killed.errors] == ["worker_lost"]
    assert all(_stage(job, other).attempt == 1 for other in ("thinker", "talker", "code2wav") if other != stage)
    undisturbed = client.wait(client.submit(case).id, timeout=400)
    assert undisturbed.result == job.result
    assert client.artifact(job.id, "audio.wav") == client.artifact(undisturbed.id, "audio.wav")


def test_afterwards_everything_is_as_before(
    stack: tuple[EmbeddedStack, Client], tiny_checkpoints: TinyCheckpoints
) -> None:
    _, client = stack
    reference = Reference(tiny_checkpoints(0))
    for case in cases():
        job = client.wait(client.submit(case.request()).id, timeout=300)
        assert job.status is JobState.COMPLETED, job.error
        assert_equal(job.result or {}, client.artifact(job.id, "audio.wav"), case.expected(reference))


def _slow_in(stage: str) -> dict[str, object]:
    """A job that spends its time in one stage."""
    request = Case("slow", "Tell me a long story. 讲个故事 📖", seed=5).request()
    stages = request["stages"]
    if stage == "thinker":
        stages["thinker"] |= {"max_tokens": LONG, "ignore_eos": True}
    elif stage == "talker":
        stages["talker"] |= {"max_tokens": LONG, "ignore_eos": True}
    else:
        stages["code2wav"] = {"steps": 200}
    return request


def _wait_for(client: Client, job_id: str, stage: str, state: StageRunState) -> None:
    deadline = time.monotonic() + 200
    while (run := _stage(client.get(job_id), stage)).status is not state:
        assert not run.status.is_final, f"{stage} was too quick: {run}"
        assert time.monotonic() < deadline, f"{stage} never was {state}: {run}"
        time.sleep(0.005)


def _stage(job: JobView, name: str) -> StageRunView:
    return next(stage for stage in job.stages if stage.name == name)


def _kill_worker(stack: EmbeddedStack, stage: str) -> None:
    child = next(child for child in stack.children() if child.name == f"worker qwen2_5_omni.{stage}")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
