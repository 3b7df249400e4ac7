"""``ModelThreads``: threads for blocking calls of a model's code: its computing, its input processor, its encoders."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from omni_jobs.errors import EngineDead
from workers.runners.cancellation import is_cancelled, settled
from workers.runners.contained import Contained
from workers.runners.current_run import CURRENT_RUN

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
        self._leaving: set[asyncio.Future[None]] = set()  # of cancelled coroutines whose calls wait

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
        loop = asyncio.get_running_loop()
        work = _ThreadCall(call, CURRENT_RUN.get())
        future = loop.run_in_executor(self._threads, lambda: work.make(lambda by: self._tell(loop, work, by)))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._threads is None and not is_cancelled():
                raise EngineDead("the runner was closed", stage=self._stage) from None
            await self._gone(work, future)
            raise

    def _tell(self, loop: asyncio.AbstractEventLoop, work: "_ThreadCall[T]", by: int) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._note, work, by)

    def _note(self, work: "_ThreadCall[T]", by: int) -> None:
        """Count a call that has begun or ended: the threads move."""
        self._in_threads[work.stage_run] += by
        if not self._in_threads[work.stage_run]:
            del self._in_threads[work.stage_run]
        for leaving in self._leaving:
            _resolve(leaving)

    async def _gone(self, work: "_ThreadCall[T]", future: "asyncio.Future[T]") -> None:
        if not work.withdraw():
            await settled(future)
            return
        if not future.done():
            leaving = asyncio.get_running_loop().create_future()
            self._leaving.add(leaving)
            future.add_done_callback(lambda _: _resolve(leaving))
            await settled(leaving)
            self._leaving.discard(leaving)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def close(self) -> None:
        """End the threads once the calls in them are done, and leave those that take 10 s. Safe to call twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            ended = asyncio.ensure_future(asyncio.to_thread(threads.shutdown, cancel_futures=True))
            await asyncio.wait({ended}, timeout=_CLOSE_S)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _ThreadCall(Generic[T]):
    """A call, from its coroutine to its thread."""

    def __init__(self, call: Callable[[], T], stage_run: int) -> None:
        self._call = call
        self.stage_run = stage_run
        self._is_wanted = True
        self._has_begun = False
        self._lock = Lock()  # a call either begins or is withdrawn

    def withdraw(self) -> bool:
        """Return whether the call will never begin, because nobody waits for it; False if it has begun."""
        with self._lock:
            self._is_wanted = False
            return not self._has_begun

    def make(self, tell: Callable[[int], None]) -> T:
        with self._lock:
            if not self._is_wanted:
                raise EngineDead("nobody waits for this call")
            self._has_begun = True
        tell(1)
        try:
            with Contained():
                return self._call()
        finally:
            tell(-1)
