"""``ModelThreads``: the threads of a runner whose model computes in blocking calls within the worker's process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from omni_jobs.errors import EngineDead

T = TypeVar("T")


class ModelThreads:
    """Runs a model's calls on a few threads, for coroutines of one event loop."""

    def __init__(self, count: int, stage: str) -> None:
        """Prepare ``count`` threads, which start when they are first needed."""
        self._stage = stage
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(count, thread_name_prefix=f"{stage}-model")

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call. A coroutine that is cancelled leaves a call that has begun to its thread.

        Raises EngineDead once closed, also for a call that waits for a thread then.
        """
        if self._threads is None:
            raise EngineDead("the runner is closed", stage=self._stage)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._threads is None and caller is not None and not caller.cancelling():
                raise EngineDead("the runner was closed", stage=self._stage) from None
            raise

    async def close(self) -> None:
        """End the threads once the calls in them are done. Safe to call twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)
