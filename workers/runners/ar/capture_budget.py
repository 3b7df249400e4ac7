"""``CaptureBudget``: a bound on the bytes of hidden states that one worker keeps at a time.

    reserve → the request enters the engine → its rows are taken → the worker stores them → free

A request's rows lie in the engine's process until they are taken, then in the spool until they are stored, and for a
moment in both. So a request reserves twice the size to which its rows can grow. Above the budget requests wait in the
order of their age, so that small ones do not pass a large one for ever. A request that captures nothing does not wait
here. But it may wait outside until the worker claims it, because requests that wait here fill the worker's slots.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from omni_jobs.errors import PayloadTooLarge

RAISE_LIMIT = "set OMNI_JOBS_CAPTURE_BYTES on the worker"
"""How an operator makes the budget larger where a setting or the memory bounds it."""

ENLARGE_SPOOL = "give the worker a larger spool, whose size is that limit (OMNI_JOBS_SPOOL_DIR; unset: /dev/shm)"
"""How an operator makes the budget larger where the spool bounds it."""

_DEFAULT_MOST_BYTES = 8 << 30
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class CaptureBudget:
    """A bound on the bytes that an ``ARRunner``'s requests reserve and give back. Used on one event loop."""

    def __init__(self, limit: int, remedy: str = RAISE_LIMIT) -> None:
        """Let requests reserve ``limit`` bytes together. ``remedy`` ends the message of PayloadTooLarge."""
        self.limit = limit
        self._remedy = remedy
        self.reserved = 0
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()  # (bytes, granted), the oldest first

    @property
    def waiting(self) -> int:
        """The number of requests that wait for bytes."""
        return len(self._line)

    def has_room(self, nbytes: int) -> bool:
        """Return whether ``reserve(nbytes)`` would return at once, without a wait."""
        return not self._line and self.reserved + nbytes <= self.limit

    async def reserve(self, nbytes: int) -> CaptureShare:
        """Wait for ``nbytes`` bytes and return their reservation; a cancelled wait leaves nothing reserved.

        Raises PayloadTooLarge for more than the limit.
        """
        if nbytes > self.limit:
            raise PayloadTooLarge(
                f"keeping its hidden states needs {nbytes:,} bytes, and this worker keeps {self.limit:,} at most: "
                f"ask for fewer max_tokens, or {self._remedy}",
                field="capture_bytes",
            )
        if self.has_room(nbytes):
            self.reserved += nbytes
            return CaptureShare(self, nbytes)
        granted: asyncio.Future[None] = self._loop.create_future()
        self._line.append((nbytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(nbytes)  # granted and cancelled in one turn of the loop
            else:
                with suppress(ValueError):  # ``_admit`` has taken it out of the line already
                    self._line.remove((nbytes, granted))
                self._admit()  # those behind it may fit
            raise
        return CaptureShare(self, nbytes)

    def _give_back(self, nbytes: int) -> None:
        self.reserved -= nbytes
        self._admit()

    def _admit(self) -> None:
        while self._line and self.reserved + self._line[0][0] <= self.limit:
            nbytes, granted = self._line.popleft()
            if not granted.done():
                self.reserved += nbytes
                granted.set_result(None)


class CaptureShare:
    """The bytes of a ``CaptureBudget`` that one request has, until ``free`` is called or this object is deleted."""

    def __init__(self, budget: CaptureBudget, nbytes: int) -> None:
        self.nbytes = nbytes
        self._budget: CaptureBudget | None = budget

    def free(self) -> None:
        """Give the bytes back, on the budget's event loop; safe to call twice."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._give_back(self.nbytes)

    def __del__(self) -> None:
        budget, self._budget = self._budget, None
        if budget is not None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits for the budget any more
                budget._loop.call_soon_threadsafe(budget._give_back, self.nbytes)


def default_capture_bytes(spool_capacity: int) -> int:
    """Return a budget's default limit in bytes: the least of 8 GiB, a quarter of the memory and ``spool_capacity``.

    The memory is the machine's or the container's. None of the three changes while a worker runs, so a job fits on all
    workers of equal machines or on none.
    """
    return min(_DEFAULT_MOST_BYTES, _memory_bytes() // 4, spool_capacity)


def _memory_bytes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max": no limit
            memory = min(memory, int(path.read_text(encoding="ascii")))
    return memory
