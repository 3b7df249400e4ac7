"""``Lookups``: caches what the database says of a key or a tenant for moments, so that requests need not ask it.

What nobody has asked for, or what is not there, cannot hold up the rest: such lookups have a thread of their own, and
few of them may wait for it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import ServerBusy

T = TypeVar("T")

KEPT_S: Final = 3.0
_MOST_KEPT = 10_000  # of what is there, and as many of what is not
_MOST_STRANGERS = 256  # lookups that may go on for what was not there before

_Kept = OrderedDict[str, tuple[T, float]]


class Lookups(Generic[T]):
    """Looks things up on threads, and keeps what it found for KEPT_S at most. For one event loop."""

    def __init__(
        self, look_up: Callable[[str], tuple[T | None, float]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``look_up`` returns a thing, or None, and for how many seconds it is true. ``clock`` returns seconds."""
        self._look_up = look_up
        self._clock = clock
        self._there: _Kept[T] = OrderedDict()  # with the time until which it is kept
        self._missing: _Kept[None] = OrderedDict()
        self._going: dict[str, asyncio.Task[T | None]] = {}
        self._strangers: set[str] = set()  # of those that go on, the ones that were not there before
        self._for_known = CapacityLimiter(2)
        self._for_strangers = CapacityLimiter(1)

    async def get(self, name: str) -> T | None:
        """Return the thing of this name, or None. Raises what ``look_up`` raises, and ServerBusy for a stranger."""
        for kept in (self._there, self._missing):
            if name in kept and self._clock() < kept[name][1]:
                return kept[name][0]
        if name not in self._going:
            is_known = name in self._there
            if not is_known and len(self._strangers) >= _MOST_STRANGERS:
                raise ServerBusy("too many unknown callers are being looked up")
            if not is_known:
                self._strangers.add(name)
            self._going[name] = asyncio.create_task(self._find(name))
            self._going[name].add_done_callback(_take_error)
        return await asyncio.shield(self._going[name])  # a request that is cancelled takes the answer from nobody

    def was_there(self, name: str) -> bool:
        """Return whether the thing of this name was there when it was last looked up, however long ago."""
        return name in self._there

    def forget(self, name: str) -> None:
        """Forget what was found, because it is there no longer."""
        self._there.pop(name, None)

    async def _find(self, name: str) -> T | None:
        began = self._clock()
        try:
            limiter = self._for_strangers if name in self._strangers else self._for_known
            found, true_for_s = await run_sync(self._look_up, name, limiter=limiter)
        finally:
            self._strangers.discard(name)
            del self._going[name]
        until = began + min(KEPT_S, true_for_s)
        if found is None:
            self._there.pop(name, None)
            _keep(self._missing, name, None, until)
        else:
            self._missing.pop(name, None)
            _keep(self._there, name, found, until)
        return found


def _take_error(lookup: asyncio.Task[object]) -> None:
    """Take the error of a lookup that nobody waits for any more; asyncio would log it with its trace."""
    if not lookup.cancelled():
        lookup.exception()


def _keep(kept: OrderedDict[str, tuple[T, float]], name: str, thing: T, until: float) -> None:
    """Keep a thing until a time, in place of the one that was looked up longest ago if there are too many."""
    kept[name] = (thing, until)
    kept.move_to_end(name)
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
