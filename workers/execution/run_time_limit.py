"""``TimeLimit``: how long a stage run may take. Time in which the runner has no room for it does not count."""

import asyncio
from collections.abc import Callable
from typing import Self

from omni_jobs.errors import TimeLimitExceeded
from omni_jobs.pipelines.stage_config import StageConfig
from workers.stages.types import Progress


class TimeLimit:
    """An async context manager that cancels its block once the stage's time is over, and raises TimeLimitExceeded."""

    def __init__(self, stage: StageConfig, on_over: Callable[[], None] = lambda: None) -> None:
        """Set the limit to ``stage.time_limit_s``, counted from the begin of the block.

        ``on_over`` is called on the event loop when the time is over, before the block is cancelled.
        """
        self._stage = stage
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._left_s = stage.time_limit_s  # at ``_started_at``
        self._started_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # None: the clock stands still
        self._ended = self._is_over = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is for the code of a task")
        self._task, self._cancels_before = task, task.cancelling()
        self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._ended = True
        self._stop()
        # As in asyncio.timeout, which costs as much again: a cancel that somebody else asked for goes on as a cancel.
        if self._is_over and self._task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise TimeLimitExceeded(
                f"not done after {self._stage.time_limit_s:g} s, the stage's time limit", stage=self._stage.name
            ) from error

    def note(self, progress: Progress) -> None:
        """Stop the clock when this progress says that the stage run waits for room in its runner; else let it go on."""
        if self._ended:
            return
        if progress.waiting and self._timer is not None:
            # The timer may be late. Then a moment is left, in which it comes after the wait.
            self._left_s = max(self._left_s - (self._loop.time() - self._started_at), 1e-3)
            self._stop()
        elif not progress.waiting and self._timer is None:
            self._start()

    def _start(self) -> None:
        self._started_at = self._loop.time()
        self._timer = self._loop.call_later(self._left_s, self._over)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._ended = self._is_over = True
        self._on_over()
        self._task.cancel()
