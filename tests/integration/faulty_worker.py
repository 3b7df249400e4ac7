"""A worker's app with a fault in it: ``celery -A tests.integration.faulty_worker worker``, TEST_FAULT names it.

stall   after SIGUSR1 Celery pops nothing any more, and says nothing
deaf    a stage run does not stop when it is cancelled
hang    reading an object never ends; the process waits 3 s for what hangs in it, not 45
load    its engine loads until SIGUSR2
limit   the time in which its model must load begins with SIGUSR2
bug     after SIGUSR2 a heartbeat meets an error that nobody foresaw
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from omni_jobs.jobs import Jobs
from omni_jobs.storage.local import LocalObjectStore
from workers.app import app
from workers.consumer import pool
from workers.consumer.hook_step import HookStep
from workers.execution.stage_llm import StageLLM
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.runner import ProgressSink
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["app"]


class Stall(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Needs the channel as ``HookStep`` leaves it."""

    requires = (HookStep,)

    def start(self, c: Any) -> None:
        channel = c.task_consumer.channel

        def stall(*_: object) -> None:
            channel.qos.can_consume = lambda: False

        signal.signal(signal.SIGUSR1, stall)


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

    def renew_until_told(self: Jobs, worker_id: str, lease_s: float) -> list[int]:
        if told.is_set():
            raise RuntimeError("a bug")
        return renew(self, worker_id, lease_s)

    signal.signal(signal.SIGUSR2, lambda *_: told.set())
    Jobs.renew = renew_until_told  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "stall": lambda: app.steps["consumer"].add(Stall),
    "deaf": lambda: setattr(EchoRunner, "run", run_deaf),
    "hang": hang_in_reads,
    "load": load_until_told,
    "limit": limit_load_when_told,
    "bug": meet_a_bug,
}

FAULTS[os.environ["TEST_FAULT"]]()
