"""``ModelThreads``: threads for blocking calls of a model's code: its computing, its input processor, its encoders."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from omni_jobs.errors import EngineDead
from workers.runners.cancellation import is_cancelled, settled
from workers.runners.contained import Contained
from workers.runners.runner import CURRENT_RUN

T = TypeVar("T")

_CLOSE_S = 10.0  # then a call that hangs is left to the end of the process


class ModelThreads:
    """Runs a model's calls on a few threads, for coroutines of one event loop.

    A cancelled coroutine ends once its call has ended. If the call has not begun, it never does, and the coroutine ends
    when another one begins or ends. Behind a call that hangs it waits on, so that the hang is blamed and not it.
    """

    def __init__(self, count: int, stage: str) -> None:
        """Prepare ``count`` threads, which start when they are first needed."""
        self._stage = stage
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(count, thread_name_prefix=f"{stage}-model")
        self._in_threads: Counter[int] = Counter()  # the stage runs whose calls have begun and not ended
        self._leaving: list[asyncio.Future[None]] = []  # of cancelled coroutines whose calls never begin

    @property
    def computing(self) -> Collection[int]:
        """The stage runs whose calls are in threads now."""
        return set(self._in_threads)

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call, or raise its error: ModelError in place of SystemExit and its like.

        Raises EngineDead once closed, also for a call that waits for a thread then.
        """
        if self._threads is None:
            raise EngineDead("the runner is closed", stage=self._stage)
        loop, stage_run = asyncio.get_running_loop(), CURRENT_RUN.get()

        def make() -> T:
            self._tell(loop, stage_run, 1)
            try:
                with Contained():
                    return call()
            finally:
                self._tell(loop, stage_run, -1)

        work = self._threads.submit(make)
        future = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._threads is None and not is_cancelled():
                raise EngineDead("the runner was closed", stage=self._stage) from None
            if not work.cancel():  # it has begun
                await settled(future)
            elif self._in_threads and self._threads is not None:
                await self._moved()
            raise

    def _tell(self, loop: asyncio.AbstractEventLoop, stage_run: int, by: int) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._note, stage_run, by)

    def _note(self, stage_run: int, by: int) -> None:
        """Count a call that has begun or ended: the threads move."""
        self._in_threads[stage_run] += by
        if not self._in_threads[stage_run]:
            del self._in_threads[stage_run]
        self._let_go()

    async def _moved(self) -> None:
        """Return once a call has begun or ended, or the threads are closed."""
        leaving = asyncio.get_running_loop().create_future()
        self._leaving.append(leaving)
        await settled(leaving)

    def _let_go(self) -> None:
        for leaving in self._leaving:
            leaving.set_result(None)
        self._leaving.clear()

    async def close(self) -> None:
        """End the threads once the calls in them are done, and leave those that take 10 s. Safe to call twice."""
        threads, self._threads = self._threads, None
        self._let_go()
        if threads is not None:
            ended = asyncio.ensure_future(asyncio.to_thread(threads.shutdown, cancel_futures=True))
            await asyncio.wait({ended}, timeout=_CLOSE_S)
