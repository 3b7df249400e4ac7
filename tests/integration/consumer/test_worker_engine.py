"""A worker and its engine's processes: neither outlives the other, and a cancel frees the engine.

Real vLLM with the tiny checkpoint, one stage. An engine's start is dear, so the tests go
through one worker's slot in their order.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack, EchoWorker, speech_stack
from tests.processes import descendants, named, one_process_an_engine, until_gone

pytest.importorskip("vllm")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

START_S = 300.0
LONG = {"max_tokens": 8000, "ignore_eos": True}
CANCELS = 12
QUIET_S = 0.5  # an engine that uses no processor time for so long has nothing to do


@pytest.fixture(scope="module")
def stack(valkey_server: str, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoStack]:
    with speech_stack(tmp_path_factory.mktemp("engine"), valkey_server, tiny_checkpoint) as stack:
        yield stack


@pytest.fixture(scope="module")
def worker(stack: EchoStack) -> EchoWorker:
    """The first in the slot. Its engine has a process for its rank; those of its successors do without."""
    return start(stack)


def start_successor(stack: EchoStack) -> EchoWorker:
    with one_process_an_engine():
        return start(stack)


def start(stack: EchoStack) -> EchoWorker:
    worker = stack.launch("thinker", "thinker@test")
    stack.serving(worker, START_S)
    return worker


def submit(stack: EchoStack, **parameters: object) -> str:
    job_id = stack.submit("Tell me a long story.", thinker={**LONG, **parameters})
    stack.running(job_id, "thinker", 120)
    return job_id


def test_cancel_frees_the_engine(stack: EchoStack, worker: EchoWorker) -> None:
    """From the call to the last moment that the engine's process computed."""
    (engine,) = engines(worker)
    took, told = [], []
    for _ in range(CANCELS):
        job_id = submit(stack)
        time.sleep(random.uniform(0, 0.5))
        began = last = time.monotonic()
        assert stack.jobs.cancel(job_id) is JobState.CANCELLING
        used, state = processor_s(engine), JobState.CANCELLING
        while state is not JobState.CANCELLED or time.monotonic() - last < QUIET_S:
            assert time.monotonic() - began < 30, "the engine goes on"
            if state is not JobState.CANCELLED and (state := stack.jobs.get(job_id).status) is JobState.CANCELLED:
                told.append(time.monotonic() - began)
            if (now := processor_s(engine)) > used:
                used, last = now, time.monotonic()
            time.sleep(0.01)
        took.append(last - began)
    for name, times in (("cancelled", sorted(told)), ("engine free", sorted(took))):
        print(f"cancel -> {name}, {CANCELS} jobs: p50 {times[len(times) // 2]:.2f} s, most {times[-1]:.2f} s")


def test_kill_9_of_the_worker_ends_its_engine_and_the_successor_goes_on(stack: EchoStack, worker: EchoWorker) -> None:
    """The engine is stopped, as one that hangs: it cannot end itself."""
    (spool,) = spools(stack)
    job_id = submit(stack)
    below = descendants(worker.process.pid)
    assert below
    shared = {path for pid in (worker.process.pid, *below) for path in shared_memory(pid)}
    (engine,) = engines(worker)
    os.kill(engine, signal.SIGSTOP)
    worker.stop(signal.SIGKILL)
    took = until_gone(below, 30)
    print(f"kill -9 of the worker -> its {len(below)} processes gone: {took:.2f} s")
    start_successor(stack)
    assert spool not in spools(stack)
    assert not [path for path in shared if path.exists()]
    assert stack.running(job_id, "thinker", 120).stages[0].attempt == 2
    stack.jobs.cancel(job_id)
    stack.ended(job_id)


def test_kill_9_of_the_engine_queues_its_stage_runs_again(stack: EchoStack) -> None:
    worker = stack.workers[-1]
    (engine,) = engines(worker)
    job_id = submit(stack)
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    errors = stack.until(lambda: stack.jobs.get(job_id).stages[0].errors or None, 60)
    queued = time.monotonic() - killed
    assert [error.code for error in errors] == ["engine_dead"]
    assert worker.process.wait(60) == 1
    ended = time.monotonic() - killed
    assert told(stack, job_id) == ("engine_down", "the engine of stage thinker is down, and no worker loads it yet")
    with one_process_an_engine():
        successor = stack.launch("thinker", "thinker@test")
        stack.until(lambda: stack.jobs.slot_holder("thinker@test"), START_S)
        assert told(stack, job_id) == (
            "engine_down",
            "the engine of stage thinker is down, and a worker loads it again",
        )
        stack.serving(successor, START_S)
    assert stack.jobs.down_engines() == {}
    # A claim that was under way when the engine died was handed back, which counts nothing: one attempt more, no error.
    assert [error.code for error in stack.running(job_id, "thinker", 120).stages[0].errors] == ["engine_dead"]
    print(
        f"kill -9 of the engine -> queued again {queued:.2f} s, worker ended {ended:.2f} s, "
        f"running again {time.monotonic() - killed:.2f} s"
    )
    stack.jobs.cancel(job_id)
    stack.ended(job_id)


def test_an_engine_that_dies_with_nothing_in_it_ends_its_worker(stack: EchoStack) -> None:
    worker = stack.workers[-1]
    (engine,) = engines(worker)
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    assert worker.process.wait(60) == 1
    print(f"kill -9 of an idle engine -> worker ended {time.monotonic() - killed:.2f} s")
    assert "the engine is gone" in worker.log.read_text()
    [(down, slots)] = stack.jobs.down_engines().items()
    assert (down.pipeline, down.stage, slots) == ("qwen2_5_omni", "thinker", 1)


def told(stack: EchoStack, job_id: str) -> tuple[str, str]:
    """Why a job waits."""
    waiting = stack.jobs.get(job_id).waiting
    assert waiting is not None
    return waiting.reason, waiting.message


# Processes, from /proc.


def engines(worker: EchoWorker) -> list[int]:
    """vLLM names its processes."""
    return named(worker.process.pid, b"EngineCore")


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_memory(pid: int) -> list[Path]:
    """The files of Python's shared memory that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [Path(line.split()[-1]) for line in lines if "/dev/shm/psm_" in line]


def spools(stack: EchoStack) -> list[Path]:
    return [path for path in (stack.directory / "spool").iterdir() if path.is_dir()]
