"""A worker's engine process ends with its worker, however that ends, and the next worker of the slot can start."""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.echo_stack import EchoStack, EchoWorker, speech_stack
from tests.integration.traced_stack import traced_checkpoint, traced_stack
from tests.processes import descendants, named, until_gone

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SLOT = "draw@test"
IMPORTED_S = 60
"""A rank that begins while its engine dies imports vLLM before it looks for that engine (docs/reliability.md).

Until then it keeps open what Python's resource tracker of the worker reads, so that process lives as long.
"""
OPTIONS = {"OMNI_JOBS_DEVICE": "cpu", "OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_HEARTBEAT_S": "1"}


@pytest.fixture(scope="module")
def drawing(valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoStack]:
    """A diffusion stage with the example's model, because that loads in a second."""
    with (
        traced_checkpoint(tmp_path_factory.mktemp("traced")) as checkpoint,
        traced_stack(tmp_path_factory.mktemp("drawing"), valkey_server, checkpoint, OPTIONS) as stack,
    ):
        yield stack


@pytest.fixture(scope="module")
def speech(valkey_server: str, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoStack]:
    with speech_stack(tmp_path_factory.mktemp("processes"), valkey_server, tiny_checkpoint, OPTIONS) as stack:
        yield stack


def kill_while_both_hang(worker: EchoWorker, engine: int) -> None:
    """The kernel ends the engine. Neither process runs code of its own, so one that does not hang ends as well."""
    os.kill(engine, signal.SIGSTOP)
    worker.process.send_signal(signal.SIGSTOP)
    worker.stop(signal.SIGKILL)


def stop(worker: EchoWorker, engine: int) -> None:
    assert worker.stop(signal.SIGTERM) == 0


def stop_while_the_engine_hangs(worker: EchoWorker, engine: int) -> None:
    os.kill(engine, signal.SIGSTOP)
    assert worker.stop(signal.SIGTERM, within_s=60) == 0


@pytest.mark.parametrize("end", [kill_while_both_hang, stop, stop_while_the_engine_hangs])
def test_the_engine_ends_with_its_worker_and_the_slot_is_free(
    drawing: EchoStack, end: Callable[[EchoWorker, int], None]
) -> None:
    worker = drawing.launch("draw", SLOT)
    drawing.serving(worker)
    below, engine = processes_of(worker)
    end(worker, engine)
    until_gone(below, 30)


def test_a_successor_ends_a_stopped_worker_and_its_engine(drawing: EchoStack) -> None:
    stopped = drawing.launch("draw", SLOT)
    drawing.serving(stopped)
    below, _ = processes_of(stopped)
    drawing.freeze(stopped)
    drawing.serving(drawing.launch("draw", SLOT))
    assert stopped.process.wait(30) == -signal.SIGKILL
    until_gone(below, 30)


def test_an_engine_that_starts_ends_with_its_worker(speech: EchoStack) -> None:
    """vLLM's engine waits 5 minutes for its worker's first answer. A stopped worker gives none."""
    pytest.importorskip("vllm")
    worker = speech.launch("thinker", "thinker@test")
    speech.until(lambda: named(worker.process.pid, b"spawn_main") or None, 120)
    # The new process waits for what it shall do, so a worker that is stopped too soon goes on for a moment.
    signals = itertools.cycle((signal.SIGSTOP, signal.SIGCONT))

    def has_begun() -> list[int] | None:
        worker.process.send_signal(next(signals))
        return named(worker.process.pid, b"EngineCore") or None

    speech.until(has_begun, 120)
    worker.process.send_signal(signal.SIGSTOP)
    below = descendants(worker.process.pid)
    worker.stop(signal.SIGKILL)
    until_gone(below, IMPORTED_S)


@pytest.mark.parametrize("moment", ["the slot is taken", "spawn_main", "EngineCore"])
def test_a_worker_that_is_stopped_while_it_starts_ends_soon_with_all_that_it_started(
    moment: str, speech: EchoStack
) -> None:
    """While it imports vLLM, while the engine's process does, and while that loads the model."""
    pytest.importorskip("vllm")
    worker = speech.launch("thinker", "thinker@test")

    def has_come() -> bool:
        assert worker.process.poll() is None, worker.log.read_text()
        return moment in worker.log.read_text() or bool(named(worker.process.pid, moment.encode()))

    speech.until(lambda: has_come() or None, 120)
    below = descendants(worker.process.pid)
    assert worker.stop(signal.SIGTERM, within_s=60) == 0, worker.log.read_text()
    until_gone(below, IMPORTED_S)


def processes_of(worker: EchoWorker) -> tuple[list[int], int]:
    """All processes below a worker, and its engine's among them."""
    (engine,) = named(worker.process.pid, b"engine_main")
    return descendants(worker.process.pid), engine
