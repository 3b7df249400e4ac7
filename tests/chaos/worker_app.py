"""The workers' app of a chaos run: ``celery -A tests.chaos.worker_app worker``. Echo computes as an engine does here.

Each step of an echo is a call on one thread, as an engine takes one step for all its rows, so a step that hangs keeps
all of them waiting, and the runner can tell for which it computes. The file that ``CHAOS_ORDER`` names says what
becomes of the next step; whoever finds an order takes the file away.

hang   the step never ends
block  the event loop stands still in it
"""

import asyncio
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from omni_jobs.errors import EngineDead
from workers.app import app
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import ProgressSink
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["app"]

ORDER = Path(os.environ["CHAOS_ORDER"])
TICK_S = 0.2
_threads = ModelThreads(1, "echo")
_run, _close = EchoRunner.run, EchoRunner.close


def _is_ordered(what: str) -> bool:
    """Whether this step finds the order; it is taken away."""
    with suppress(OSError):
        if ORDER.read_text() == what:
            ORDER.unlink()
            return True
    return False


def _for_ever() -> None:
    threading.Event().wait()


def _step() -> None:
    if _is_ordered("hang"):
        _for_ever()


async def _take_step() -> None:
    if _is_ordered("block"):
        _for_ever()
    await _threads.run(_step)


async def _run_in_steps(self: EchoRunner, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
    await _take_step()
    return await _run(self, prompt, progress)


async def _wait_in_steps(self: EchoRunner, delay_s: float, progress: ProgressSink) -> None:
    total = round(delay_s * 1000)
    started = time.monotonic()
    while (left := delay_s - (time.monotonic() - started)) > 0:
        progress(Progress(done=round((delay_s - left) * 1000), total=total, unit="ms"))
        await asyncio.sleep(min(left, TICK_S))
        await _take_step()
        if self._closed:
            raise EngineDead("the runner was closed", stage=self._stage)


def _computing(self: EchoRunner) -> Collection[int]:
    return _threads.computing


async def _close_threads(self: EchoRunner) -> None:
    await _close(self)
    await _threads.close()


EchoRunner.run = _run_in_steps  # type: ignore[method-assign]
EchoRunner._wait = _wait_in_steps  # type: ignore[method-assign]
EchoRunner.computing = property(_computing)  # type: ignore[attr-defined]
EchoRunner.close = _close_threads  # type: ignore[method-assign]
