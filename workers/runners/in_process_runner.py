"""``InProcessRunner``: the base of runners that compute in the worker's own process: of small models, and without any.

class Plotter(InProcessRunner[PlotterPrompt, PlotterEngine]):
    async def produce(self, prompt: PlotterPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        ...await self.on_thread(lambda: points(prompt))
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from workers.runners.base_runner import BaseRunner, E, P
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

T = TypeVar("T")

_LAST_WORDS_S = 1.0  # for what runs do after their last call; one that hangs is left to the end of the process


class InProcessRunner(BaseRunner[P, E]):
    """Runs prompts of the type ``P`` by engine settings of the type ``E``. Implements ``TellingRunner``.

    A subclass has ``produce``, and may have ``threads``, ``load`` and ``free``. Everything that blocks belongs on a
    thread, so that the event loop runs on and the worker can tell which call hangs. Progress may be told on the loop
    and on the threads. Should native code crash, the worker ends and is started again, and the stage runs that it held
    are tried again.
    """

    def __init__(self, args: OmniEngineArgs) -> None:
        """Keep the arguments, and the settings as ``engine``. Raises ConfigError for settings of another runner."""
        super().__init__(args)
        self._threads = ModelThreads(self.threads(), args.stage)
        self._is_open = False

    def threads(self) -> int:
        """Return how many calls may be on threads at once: as many as stage runs, one for each core at most."""
        return min(self.args.max_in_flight, len(os.sched_getaffinity(0)))

    def load(self) -> None:
        """Load the model, on a thread. Raises ConfigError naming the file or setting that is wrong, and OutOfMemory."""

    def free(self) -> None:
        """Let go of what ``load`` made, once no call is on a thread; called twice, and after a failed ``load``, too."""

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Return the result of a call on one of the threads. A call that has begun is waited for, also if cancelled."""
        return await self._threads.run(call)

    async def start(self) -> None:
        """Load the model."""
        await self.on_thread(self.load)
        self._is_open = True

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        return await super().run(prompt, _from_any_thread(progress))

    async def close(self) -> None:
        """End the runs in progress with EngineDead, the threads once their calls are done, and free the model."""
        self._is_open = False
        self._runs.close()
        await self._threads.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._runs.settled()
        self.free()

    @property
    def healthy(self) -> bool:
        return self._is_open

    @property
    def computing(self) -> Collection[int]:
        """The stage runs whose calls are on threads now."""
        return self._threads.computing


def _from_any_thread(progress: ProgressSink) -> ProgressSink:
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def tell(report: Progress) -> None:
        if threading.get_ident() == home:
            progress(report)
        else:
            loop.call_soon_threadsafe(progress, report)

    return tell
