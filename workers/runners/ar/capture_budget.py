"""``CaptureBudget``: how many bytes of hidden states one worker keeps at a time.

    reserve → the request enters the engine → its rows are taken → stored by the worker → free

A request's rows lie in the engine's process until they are taken, and in the spool from then
until they are stored; while they are taken, in both. So what is reserved is both, at the size
its rows can grow to. Above the budget a request waits, the oldest first: a large one is not
passed by small ones for ever. A request that captures nothing does not wait for room; it may wait
for a slot of the worker, because one that waits here holds its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omni_jobs.errors import PayloadTooLarge

__all__ = ["ENLARGE_SPOOL", "RAISE_LIMIT", "CaptureBudget", "Reservation", "default_capture_bytes"]

RAISE_LIMIT = "set OMNI_JOBS_CAPTURE_BYTES on the worker"
ENLARGE_SPOOL = "give the worker a larger spool, whose size is that limit (OMNI_JOBS_SPOOL_DIR; unset: /dev/shm)"
"""What makes the budget larger."""

_MOST = 8 << 30
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(eq=False, slots=True)
class _Waiting:
    need: int
    granted: asyncio.Future[None]


class CaptureBudget:
    """Bytes that are reserved and given back, on one event loop."""

    def __init__(self, limit: int, remedy: str = RAISE_LIMIT) -> None:
        self.limit = limit
        self._remedy = remedy
        self.reserved = 0
        self._loop = asyncio.get_running_loop()
        self._line: deque[_Waiting] = deque()  # the oldest first

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return len(self._line)

    def has_room(self, need: int) -> bool:
        """Whether ``reserve`` would not wait."""
        return not self._line and self.reserved + need <= self.limit

    async def reserve(self, need: int) -> Reservation:
        """Wait for ``need`` bytes; cancelling gives them back. Raises PayloadTooLarge for what can never fit."""
        if need > self.limit:
            raise PayloadTooLarge(
                f"keeping its hidden states needs {need:,} bytes, and this worker keeps {self.limit:,} at most: "
                f"ask for fewer max_tokens, or {self._remedy}",
                field="capture_bytes",
            )
        if self.has_room(need):
            self.reserved += need
            return Reservation(self, need)
        waiting = _Waiting(need, self._loop.create_future())
        self._line.append(waiting)
        try:
            await waiting.granted
        except asyncio.CancelledError:
            if waiting.granted.done() and not waiting.granted.cancelled():
                self._give_back(need)  # granted and cancelled in one turn of the loop
            else:
                with suppress(ValueError):  # passed over since it was cancelled
                    self._line.remove(waiting)
                self._admit()  # who stood behind may fit
            raise
        return Reservation(self, need)

    def _give_back(self, need: int) -> None:
        self.reserved -= need
        self._admit()

    def _admit(self) -> None:
        while self._line and self.reserved + self._line[0].need <= self.limit:
            waiting = self._line.popleft()
            if not waiting.granted.done():
                self.reserved += waiting.need
                waiting.granted.set_result(None)


class Reservation:
    """Bytes of a budget, until ``free``; forgotten, they are freed with this object."""

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
            with suppress(RuntimeError):  # the loop is closed: so is the budget
                budget._loop.call_soon_threadsafe(budget._give_back, self.nbytes)


def default_capture_bytes(spool_capacity: int) -> int:
    """8 GiB, or less: a quarter of the memory (the machine's or the container's), and what the spool can hold.

    None of it changes while a worker runs, so a job fits on every worker of a kind or on none.
    """
    return min(_MOST, _memory_bytes() // 4, spool_capacity)


def _memory_bytes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max": no limit
            memory = min(memory, int(path.read_text(encoding="ascii")))
    return memory
