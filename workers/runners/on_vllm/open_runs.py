"""``OpenRuns``: the runs under way in a runner's engine, which end with EngineDead when the runner closes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from omni_jobs.errors import EngineDead
from workers.stages.types import OmniModelRunnerOutput


class OpenRuns:
    """Runs each prompt in a task of its own, for coroutines of one event loop."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._tasks: set[asyncio.Task[OmniModelRunnerOutput]] = set()
        self._closed = False

    async def run(self, run: Coroutine[Any, Any, OmniModelRunnerOutput]) -> OmniModelRunnerOutput:
        """Return the run's output. Cancelling the caller cancels the run. Raises its errors, and EngineDead."""
        task = asyncio.create_task(run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise EngineDead("the engine was closed", stage=self._stage) from None
            raise

    def close(self) -> None:
        """Cancel all runs: their callers get EngineDead. Safe to call twice."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
