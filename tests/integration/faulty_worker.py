"""A worker's app with a fault in it: ``celery -A tests.integration.faulty_worker worker``, TEST_FAULT names it.

stall   after SIGUSR1 its stage's event loop stands still; the process waits 3 s for it, not 45
block   a stage run of the text "block" blocks its stage's event loop; the process waits 3 s for it, not 45
hold    a stage run of the text "hold" keeps the interpreter's lock for ever, as native code may
deaf    a stage run does not stop when it is cancelled
hang    reading an object never ends; the process waits 3 s for what hangs in it, not 45
load    its engine loads until SIGUSR2
limit   the time in which its model must load begins with SIGUSR2
bug     after SIGUSR2 a heartbeat meets an error that nobody foresaw
full    as long as there is a file TEST_FULL, the disk of the object store has no room for more than half an object
"""

import asyncio
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.jobs import Jobs
from omni_jobs.storage import local
from omni_jobs.storage.local import LocalObjectStore
from workers.app import app
from workers.consumer import pool
from workers.execution.stage_llm import StageLLM
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.runner import ProgressSink
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["app"]


def stall_when_told() -> None:
    on_start = pool.StagePool.on_start

    def start_and_listen(self: pool.StagePool) -> None:
        on_start(self)
        signal.signal(signal.SIGUSR1, lambda *_: self._loop.call_soon_threadsafe(hang))

    pool.StagePool.on_start = start_and_listen  # type: ignore[method-assign]
    pool._CLOSE_S = 3.0


def block_when_asked() -> None:
    run = EchoRunner.run

    async def run_or_block(self: EchoRunner, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        output = await run(self, prompt, progress)
        if output.text == "block":
            hang()
        return output

    EchoRunner.run = run_or_block  # type: ignore[method-assign]
    pool._CLOSE_S = 3.0


def hold_when_asked() -> None:
    run = EchoRunner.run

    async def run_or_hold(self: EchoRunner, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        output = await run(self, prompt, progress)
        if output.text == "hold":
            ctypes.PyDLL(None).pause()
        return output

    EchoRunner.run = run_or_hold  # type: ignore[method-assign]


async def run_deaf(self: EchoRunner, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
    progress(Progress(0, 1, "steps"))
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def hang(*_: object, **__: object) -> memoryview:
    threading.Event().wait()
    raise AssertionError


def hang_in_reads() -> None:
    LocalObjectStore.read = hang  # type: ignore[method-assign]
    pool._CLOSE_S = 3.0


def load_until_told() -> None:
    told = threading.Event()
    start = StageLLM.start

    async def start_late(self: StageLLM) -> None:
        await asyncio.to_thread(told.wait)
        await start(self)

    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    StageLLM.start = start_late  # type: ignore[method-assign]


def limit_load_when_told() -> None:
    told = threading.Event()
    on_load_limit = pool.StagePool._on_load_limit

    def on_load_limit_late(self: pool.StagePool) -> None:
        told.wait()
        time.sleep(self.app.settings.load_limit_s)
        on_load_limit(self)

    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    pool.StagePool._on_load_limit = on_load_limit_late  # type: ignore[method-assign]


def meet_a_bug() -> None:
    told = threading.Event()
    renew = Jobs.renew

    def renew_until_told(self: Jobs, *arguments: Any) -> Any:
        if told.is_set():
            raise RuntimeError("a bug")
        return renew(self, *arguments)

    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    Jobs.renew = renew_until_told  # type: ignore[method-assign]


def fill_disk_when_told() -> None:
    write_all = local.write_all
    full = Path(os.environ["TEST_FULL"])

    def write_half(fd: int, buffers: Sequence[Any], **options: Any) -> int:
        if not full.exists():
            return write_all(fd, buffers, **options)
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        os.write(fd, bytes(size // 2))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    local.write_all = write_half


FAULTS: dict[str, Callable[[], None]] = {
    "stall": stall_when_told,
    "block": block_when_asked,
    "hold": hold_when_asked,
    "deaf": lambda: setattr(EchoRunner, "run", run_deaf),
    "hang": hang_in_reads,
    "load": load_until_told,
    "limit": limit_load_when_told,
    "bug": meet_a_bug,
    "full": fill_disk_when_told,
}

FAULTS[os.environ["TEST_FAULT"]]()
