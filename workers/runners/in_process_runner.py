"""``InProcessRunner``: the base of runners that compute in the worker's own process: of small models, and without any.

class Plotter(InProcessRunner[PlotterPrompt, PlotterEngine]):
    async def produce(self, prompt: PlotterPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        ...await self.on_thread(lambda: points(prompt))
"""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.contained import Contained
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

P = TypeVar("P")
E = TypeVar("E", bound=EngineSettings)
T = TypeVar("T")


class InProcessRunner(ABC, Generic[P, E]):
    """Runs prompts of the type ``P`` by engine settings of the type ``E``. Implements ``TellingRunner``.

    A subclass has ``produce``, and may have ``threads``, ``load`` and ``free``. Everything that blocks belongs on a
    thread, so that the event loop runs on and the worker can tell which call hangs. Should native code crash, the
    worker ends and is started again, and the stage runs that it held are tried again.
    """

    _prompt: ClassVar[Any]  # a class, or a union of classes
    _settings: ClassVar[type[EngineSettings]]

    def __init_subclass__(cls) -> None:
        """Note the types of prompts and settings. Raises TypeError for a class that does not name both."""
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is InProcessRunner:
                cls._prompt, cls._settings = get_args(base)
        if not hasattr(cls, "_settings"):
            raise TypeError(f"{cls.__name__} names no types: InProcessRunner[PROMPT, ENGINE_SETTINGS]")

    def __init__(self, args: OmniEngineArgs) -> None:
        """Keep the arguments, and the settings as ``engine``. Raises ConfigError for settings of another runner."""
        if not isinstance(args.engine, self._settings):
            problem = f"settings of the class {self._settings.__name__} are due, not {type(args.engine).__name__}"
            raise ConfigError(problem, field="engine", stage=args.stage)
        self.args = args
        self.engine: E = args.engine  # type: ignore[assignment]
        self._threads = ModelThreads(self.threads(), args.stage)
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()  # by ``close``
        self._is_open = False

    def threads(self) -> int:
        """Return how many calls may be on threads at once: as many as stage runs, one for each core at most."""
        return min(self.args.max_in_flight, len(os.sched_getaffinity(0)))

    def load(self) -> None:
        """Load the model, on a thread. Raises ConfigError naming the file or setting that is wrong, and OutOfMemory."""

    def free(self) -> None:
        """Let go of what ``load`` made, once no call is on a thread; called twice, and after a failed ``load``, too."""

    @abstractmethod
    async def produce(self, prompt: P, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return the output of one prompt; called for many at once. Raises ModelError for what cannot be made.

        It is cancelled when nobody waits for the output any more, and by ``close``. ``progress`` may be called on the
        event loop and on the threads.
        """

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Return the result of a call on one of the threads. A call that has begun is waited for, also if cancelled."""
        return await self._threads.run(call)

    async def start(self) -> None:
        """Load the model."""
        await self.on_thread(self.load)
        self._is_open = True

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return what ``produce`` does. Raises ModelError for a prompt of another type, and EngineDead unless open."""
        stage, caller = self.args.stage, asyncio.current_task()
        if not isinstance(prompt, self._prompt):
            due = " or ".join(kind.__name__ for kind in get_args(self._prompt) or (self._prompt,))
            raise ModelError(f"the stage takes {due}, not {type(prompt).__name__}", field="kind", stage=stage)
        if not self._is_open or caller is None:
            raise EngineDead("the runner is not open", stage=stage)
        self._running.add(caller)
        try:
            with Contained():
                return await self.produce(prompt, _from_any_thread(progress))
        except asyncio.CancelledError:
            if caller in self._ended and not caller.uncancel():
                raise EngineDead("the runner was closed", stage=stage) from None
            raise
        finally:
            self._running.discard(caller)
            self._ended.discard(caller)

    async def close(self) -> None:
        """End the runs in progress with EngineDead, the threads once their calls are done, and free the model."""
        self._is_open = False
        for task in self._running - self._ended:
            task.cancel()
            self._ended.add(task)
        await self._threads.close()
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
