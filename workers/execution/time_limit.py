"""``TimeLimit``: how long a stage run may take, the time in which its runner holds it back not counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workers.stages.types import Progress

__all__ = ["TimeLimit"]


class TimeLimit:
    """Calls ``on_over`` on the running loop once the time is over, unless it is cancelled before."""

    def __init__(self, seconds: float, on_over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._left = seconds  # when the clock was started last
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def see(self, progress: Progress) -> None:
        """The clock stands still from a progress that says waiting to the next that does not."""
        if progress.waiting and self._timer is not None:
            # At least a moment is left, because the timer may be late, and none at all means cancelled.
            self._left = max(self._left - (self._loop.time() - self._started), 1e-3)
            self._stop()
        elif not progress.waiting and self._timer is None and self._left > 0:
            self._start()

    def cancel(self) -> None:
        """The time is never over."""
        self._left = 0.0
        self._stop()

    def _start(self) -> None:
        self._started = self._loop.time()
        self._timer = self._loop.call_later(self._left, self._over)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self.cancel()
        self._on_over()
