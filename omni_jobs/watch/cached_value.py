"""``CachedValue``: caches a value that many requests read and that takes long to compute."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_CHEAP_S = 0.05
_KEPT_PER_COST = 20.0


@dataclass(frozen=True, slots=True)
class _Computed(Generic[T]):
    value: T
    began: float
    kept_s: float  # from ``began`` on


class CachedValue(Generic[T]):
    """Caches a value: the longer it takes to compute, the longer it is kept. For one event loop.

    A value that takes less than 50 ms is kept for ``least_kept_s``. Any other is kept for 20 times as long as it took,
    if that is longer, and for ``most_kept_s`` at the most. It is computed once for all who ask meanwhile: they get the
    old value if it is less than twice as old as that, or else wait.
    """

    def __init__(
        self,
        compute: Callable[[], T],
        run: Callable[[Callable[[], _Computed[T]]], Awaitable[_Computed[T]]],
        clock: Callable[[], float] = time.monotonic,
        *,
        least_kept_s: float = 0.0,
        most_kept_s: float = math.inf,
    ) -> None:
        """``compute`` makes the value, and ``run`` calls a function on a thread. ``clock`` returns seconds."""
        self._compute = compute
        self._run = run
        self._clock = clock
        self._least_kept_s = least_kept_s
        self._most_kept_s = most_kept_s
        self._kept: _Computed[T] | None = None
        self._going: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the kept value, or compute it. Raises what ``compute`` raises."""
        kept, now = self._kept, self._clock()
        if kept is not None and now < kept.began + kept.kept_s:
            return kept.value
        if self._going is None:
            self._going = asyncio.create_task(self._renew())
            self._going.add_done_callback(_take_error)
        elif kept is not None and now < kept.began + 2 * kept.kept_s:
            return kept.value
        return await asyncio.shield(self._going)  # a request that is cancelled takes the value from nobody

    async def _renew(self) -> T:
        try:
            computed = await self._run(self._timed)
        finally:
            self._going = None
        self._kept = computed if computed.kept_s else None
        return computed.value

    def _timed(self) -> _Computed[T]:
        began = self._clock()
        value = self._compute()
        took = self._clock() - began
        kept_s = max(self._least_kept_s, 0.0 if took <= _CHEAP_S else _KEPT_PER_COST * took)
        return _Computed(value, began, min(kept_s, self._most_kept_s))


def _take_error(going: asyncio.Task[T]) -> None:
    """Take the error of a computation that nobody waits for any more; asyncio would log it with its trace."""
    if not going.cancelled():
        going.exception()
