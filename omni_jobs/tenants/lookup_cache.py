"""``Lookups``: caches what the database says of a key or a tenant for moments, so that requests need not ask it.

What nobody has asked for, or what is not there, cannot hold up the rest: such lookups have a thread of their own, and
few of them may wait for it. All that wait are looked up at once, in turns of a few of each client's network.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import ServerBusy

T = TypeVar("T")

KEPT_S: Final = 3.0
_MOST_KEPT = 10_000  # of what is there, and as many of what is not
_MOST_STRANGERS = 4096  # lookups that may wait for what was not there before
_MOST_OF_NETWORK = 1024  # of these, those of clients of one network
_AT_ONCE = 256  # lookups in one call of look_up
_OF_NETWORK_IN_TURN = 8  # lookups that a call takes of one network before the next one's

_Kept = OrderedDict[str, tuple[T, float]]


class Lookups(Generic[T]):
    """Looks things up on threads, and keeps what it found for KEPT_S at most. For one event loop."""

    def __init__(
        self,
        look_up: Callable[[Sequence[str]], Mapping[str, tuple[T, float]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``look_up`` returns the things that are there by name, each with for how many seconds it is true.

        ``clock`` returns seconds.
        """
        self._look_up = look_up
        self._clock = clock
        self._there: _Kept[T] = OrderedDict()  # with the time until which it is kept
        self._missing: _Kept[None] = OrderedDict()
        self._going: dict[str, asyncio.Task[T | None]] = {}
        self._strangers: OrderedDict[str, deque[str]] = OrderedDict()  # that wait, by network; the next network first
        self._answers: dict[str, asyncio.Future[tuple[T, float] | None]] = {}  # of strangers
        self._strangers_go_on: asyncio.Task[None] | None = None
        self._for_known = CapacityLimiter(2)
        self._for_strangers = CapacityLimiter(1)

    async def get(self, name: str, network: str = "") -> T | None:
        """Return the thing of this name, or None if there is none, as it was at most KEPT_S ago.

        A stranger is a name that was not there when it was last looked up, or never was. Raises ServerBusy for one when
        too many strangers wait, and what ``look_up`` raises. ``network``: the client's, among whose strangers this one
        waits.
        """
        for kept in (self._there, self._missing):
            if name in kept and self._clock() < kept[name][1]:
                return kept[name][0]
        if name not in self._going:
            is_known = name in self._there
            if not is_known:
                self._line_up(name, network)
            self._going[name] = asyncio.create_task(self._find(name, is_known))
            self._going[name].add_done_callback(_take_error)
        return await asyncio.shield(self._going[name])  # a request that is cancelled takes the answer from nobody

    def was_there(self, name: str) -> bool:
        """Return whether the thing of this name was there when it was last looked up, however long ago."""
        return name in self._there

    def forget(self, name: str) -> None:
        """Forget what was found, because it is there no longer."""
        self._there.pop(name, None)

    def _line_up(self, name: str, network: str) -> None:
        """Let a stranger wait. Raises ServerBusy if too many do."""
        of_network = len(self._strangers.get(network, ()))
        if len(self._answers) >= _MOST_STRANGERS or of_network >= _MOST_OF_NETWORK:
            raise ServerBusy("too many unknown callers are being looked up")
        self._strangers.setdefault(network, deque()).append(name)
        self._answers[name] = asyncio.get_running_loop().create_future()
        if self._strangers_go_on is None:
            self._strangers_go_on = asyncio.create_task(self._find_strangers())

    async def _find_strangers(self) -> None:
        """Look up strangers until none waits."""
        try:
            while self._strangers:
                names = self._next_strangers()
                looked_up = run_sync(self._look_up, names, limiter=self._for_strangers)
                [found] = await asyncio.gather(looked_up, return_exceptions=True)
                for name in names:
                    answer = self._answers.pop(name)
                    if answer.done():  # cancelled, because the server stops
                        continue
                    if isinstance(found, BaseException):  # each of those who wait raises it
                        answer.set_exception(found)
                    else:
                        answer.set_result(found.get(name))
        finally:
            self._strangers_go_on = None

    def _next_strangers(self) -> list[str]:
        """Take those that are looked up next: a few of each network in turn."""
        names: list[str] = []
        while self._strangers and len(names) < _AT_ONCE:
            network, waiting = self._strangers.popitem(last=False)
            for _ in range(min(_OF_NETWORK_IN_TURN, len(waiting), _AT_ONCE - len(names))):
                names.append(waiting.popleft())
            if waiting:
                self._strangers[network] = waiting
        return names

    async def _find(self, name: str, is_known: bool) -> T | None:
        began = self._clock()
        try:
            if is_known:
                found = (await run_sync(self._look_up, [name], limiter=self._for_known)).get(name)
            else:
                found = await self._answers[name]
        finally:
            del self._going[name]
        if found is None:
            self._there.pop(name, None)
            _keep(self._missing, name, None, began + KEPT_S)
            return None
        thing, true_for_s = found
        self._missing.pop(name, None)
        _keep(self._there, name, thing, began + min(KEPT_S, true_for_s))
        return thing


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
