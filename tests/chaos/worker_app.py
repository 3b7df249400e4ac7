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
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.app import app
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.runner import ProgressSink
from workers.stages.types import OmniModelRunnerOutput, Progress

__all__ = ["app"]

ORDER = Path(os.environ["CHAOS_ORDER"])
TICK_S = 0.2
_produce = EchoRunner.produce


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


async def _take_step(self: EchoRunner) -> None:
    if _is_ordered("block"):
        _for_ever()
    await self.on_thread(_step)


async def _produce_in_steps(self: EchoRunner, prompt: Any, progress: ProgressSink) -> OmniModelRunnerOutput:
    await _take_step(self)
    return await _produce(self, prompt, progress)


async def _wait_in_steps(self: EchoRunner, delay_s: float, progress: ProgressSink) -> None:
    total = round(delay_s * 1000)
    started = time.monotonic()
    while (left := delay_s - (time.monotonic() - started)) > 0:
        progress(Progress(done=round((delay_s - left) * 1000), total=total, unit="ms"))
        await asyncio.sleep(min(left, TICK_S))
        await _take_step(self)


EchoRunner.threads = lambda self: 1  # type: ignore[method-assign]
EchoRunner.produce = _produce_in_steps  # type: ignore[method-assign]
EchoRunner._wait = _wait_in_steps  # type: ignore[method-assign]
