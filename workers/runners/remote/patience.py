"""``Patience``: how one stage run meets setbacks. It waits and tries again, within its engine settings' bounds.

``Recovery`` is what all of a runner's stage runs wait for while their server is away.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from omni_jobs.errors import RemoteUnavailable
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.failures import Setback
from workers.runners.runner import ProgressSink
from workers.stages.types import WAITING, Progress

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_FIRST_LOOK_S, _LONGEST_LOOK_S, _LOOK_GROWTH = 0.25, 5.0, 1.5  # pauses between two looks at a server
_OF_THE_REST = 0.9  # a pause may take so much of the time that is left, because one more try has to come
_MOST_REFUSALS = 100  # setbacks that do not count, of one stage run


class Recovery:
    """Waits until a server is back, with one look at it for all who wait."""

    def __init__(self, is_back: Callable[[], Awaitable[bool]]) -> None:
        """Take the question that is asked again and again, while somebody waits."""
        self._is_back = is_back
        self._waiting = 0
        self._looking: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Return once the server is back, for however many wait at once."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        looking = self._looking
        self._waiting += 1
        try:
            await asyncio.shield(looking)
        finally:
            self._waiting -= 1
            if not self._waiting:
                looking.cancel()

    async def _look(self) -> None:
        pause = _FIRST_LOOK_S
        while not await self._is_back():
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 — spreads the looks of many workers
            pause = min(pause * _LOOK_GROWTH, _LONGEST_LOOK_S)


class Patience:
    """The waits of one stage run. They are reported as ``WAITING``, so the stage's time limit does not count them."""

    def __init__(self, engine: RemoteEngine, recovery: Recovery, progress: ProgressSink) -> None:
        self._engine = engine
        self._recovery = recovery
        self._progress = progress
        self._lost = 0  # setbacks that count
        self._setbacks = 0
        self._waited_s = 0.0
        self._is_last_try = False
        self._loop = asyncio.get_running_loop()

    async def until_answered(self, exchange: Callable[[], Awaitable[T]], begin: Progress) -> T:
        """Return what ``exchange`` returns. Call it again after a setback, with ``begin`` as progress.

        Raises RemoteUnavailable when setbacks that count are as many as the settings' ``tries``. Raises it for another
        setback when those are 100, when the waits and the exchanges that ended in them took ``wait_s``, or at its last
        try, after a pause that ``wait_s`` cut short. Other errors pass.
        """
        while True:
            began = self._loop.time()
            try:
                answer = await exchange()
            except Setback as setback:
                if not setback.counts:
                    self._waited_s += self._loop.time() - began
                await self._wait_out(setback)
            else:
                self._is_last_try = False
                return answer
            self._progress(begin)

    async def _wait_out(self, setback: Setback) -> None:
        """Wait as long as a setback asks, and until the server is back. Raises RemoteUnavailable once that is enough.

        It is never EngineDead, because the worker can go on, and no lost worker, because the job may be innocent.
        """
        self._lost += setback.counts
        self._setbacks += 1
        if self._lost >= self._engine.tries:
            tries = f", in {self._lost} tries" if self._lost > 1 else ""
            raise RemoteUnavailable(f"{setback.reason}{tries}")
        left_s = self._engine.wait_s - self._waited_s
        is_refused_again = self._is_last_try and not setback.counts
        if left_s <= 0 or is_refused_again or self._setbacks - self._lost >= _MOST_REFUSALS:
            raise RemoteUnavailable(f"{setback.reason}, after {self._waited_s:.0f} s of waiting")
        pause_s = self._pause_s(setback)
        self._is_last_try = pause_s > _OF_THE_REST * left_s  # else shorter and shorter pauses would follow
        self._progress(Progress(0, None, WAITING))
        began = self._loop.time()
        try:
            async with asyncio.timeout(left_s):
                await asyncio.sleep(min(pause_s, _OF_THE_REST * left_s))
                if setback.unreachable:
                    await self._recovery.wait()
        except TimeoutError:
            raise RemoteUnavailable(f"{setback.reason}, for {self._engine.wait_s:g} s") from None
        finally:
            self._waited_s += self._loop.time() - began

    def _pause_s(self, setback: Setback) -> float:
        """Return the seconds to wait: what the server asks for, if that is half a second or more, or a growing time."""
        pause = min(_FIRST_PAUSE_S * 2.0 ** min(self._setbacks - 1, 10), _LONGEST_PAUSE_S)
        if setback.pause_s is not None:
            asked = min(setback.pause_s, self._engine.longest_pause_s)
            return asked if asked >= _FIRST_PAUSE_S else pause
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 — spreads the requests of many stage runs
