"""``OpenRuns``: the runs under way in a runner's engine, which end with EngineDead when the engine is no more.

vLLM tells its requests of the engine's death, but for those that come at that very moment: they would wait forever.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from omni_jobs.errors import EngineDead
from workers.runners.cancellation import is_cancelled
from workers.runners.contained import Contained
from workers.runners.runner import CURRENT_RUN
from workers.stages.types import OmniModelRunnerOutput

_LIVENESS_S = 1.0  # between two looks at the engine while there are runs


class OpenRuns:
    """Runs each prompt in a task of its own, for coroutines of one event loop."""

    def __init__(self, stage: str, healthy: Callable[[], bool]) -> None:
        """Watch the engine of a stage by ``healthy``, which says whether it can still answer."""
        self._stage = stage
        self._healthy = healthy
        self._tasks: dict[asyncio.Task[OmniModelRunnerOutput], int] = {}  # and for which stage run each works
        self._watch: asyncio.Task[None] | None = None
        self._ended: str | None = None  # why no run goes on

    async def run(self, run: Callable[[], Awaitable[OmniModelRunnerOutput]]) -> OmniModelRunnerOutput:
        """Return the output of a run. Cancelling the caller cancels it. Raises its errors, and EngineDead."""
        if self._ended is not None or not self._healthy():
            raise EngineDead(self._ended or "the engine is not running", stage=self._stage)
        caller = asyncio.current_task()
        task = asyncio.create_task(_contained(run), name=None if caller is None else caller.get_name())
        self._tasks[task] = CURRENT_RUN.get()
        task.add_done_callback(self._tasks.pop)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_engine())
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended is not None and not is_cancelled():
                raise EngineDead(self._ended, stage=self._stage) from None
            raise
        finally:
            del task, caller  # which have the error, whose traceback has this frame, and with it all of an answer

    @property
    def computing(self) -> Collection[int]:
        """The stage runs that are in the engine."""
        return set(self._tasks.values())

    def close(self) -> None:
        """Cancel all runs: their callers get EngineDead. Safe to call twice."""
        if self._watch is not None:
            self._watch.cancel()
        self._end("the runner was closed")

    async def settled(self) -> None:
        """Return once the runs that were cancelled have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        for task in list(self._tasks):
            task.cancel()

    async def _watch_engine(self) -> None:
        """Return when there are no more runs, or when the engine died: a second later the runs that are left end."""
        try:
            while self._tasks:
                dead = not self._healthy()
                await asyncio.sleep(_LIVENESS_S)
                if dead:
                    self._end("the engine under the runner is gone")
                    return
        finally:
            self._watch = None


async def _contained(run: Callable[[], Awaitable[OmniModelRunnerOutput]]) -> OmniModelRunnerOutput:
    with Contained():
        return await run()
