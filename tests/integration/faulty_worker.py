"""A worker's app with a fault in it: ``celery -A tests.integration.faulty_worker worker``, TEST_FAULT names it.

stall   after SIGUSR1 Celery pops nothing any more, and says nothing
deaf    a stage run does not stop when it is cancelled
hang    reading an object never ends
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from omni_jobs.storage.local import LocalObjectStore
from workers.app import app
from workers.pool import HintIntake
from workers.runners.base import ProgressSink
from workers.runners.echo import EchoRunner
from workers.stage_io import OmniModelRunnerOutput, Progress, StageInput

__all__ = ["app"]


class Stall(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Needs the channel as ``HintIntake`` leaves it."""

    requires = (HintIntake,)

    def start(self, c: Any) -> None:
        channel = c.task_consumer.channel

        def stall(*_: object) -> None:
            channel.qos.can_consume = lambda: False

        signal.signal(signal.SIGUSR1, stall)


async def run_deaf(self: EchoRunner, stage_input: StageInput, progress: ProgressSink) -> OmniModelRunnerOutput:
    progress(Progress(0, 1, "steps"))
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def hang(*_: object, **__: object) -> memoryview:
    threading.Event().wait()
    raise AssertionError


FAULTS: dict[str, Callable[[], None]] = {
    "stall": lambda: app.steps["consumer"].add(Stall),
    "deaf": lambda: setattr(EchoRunner, "run", run_deaf),
    "hang": lambda: setattr(LocalObjectStore, "read", hang),
}

FAULTS[os.environ["TEST_FAULT"]]()
