"""``Places``: the connections of an HTTP server, which are bounded in number, and who must leave when it is full.

A server that is full makes room for a request in this order. It closes the connection that has been without a request
for longest; one that has just come has a second for its first request. Else it ends slow connections of the holder with
most of them, the newest first: a holder is a tenant, or a network where the tenant is not known. A holder keeps a tenth
of the places for slow connections, and while the server is not full, a client may be as slow as the limits on time
allow. Else it closes a connection that has just come. Else the request is refused, but for those that ask for the
server's health, for which a few places are spare.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Protocol

SPARE_PLACES: Final = 32  # above the limit, for connections whose request is not known yet, or is for health
SLOW_BYTES_PER_S: Final = 64 << 10
_PATIENCE_S = 1.0
_SURVEY_EVERY_S = 0.1  # where the last survey of all connections found none to end


def is_slow(waited_s: float, moved_bytes: int) -> bool:
    """Return whether a client is slow that moved ``moved_bytes`` while the server waited ``waited_s`` for it."""
    return waited_s > _PATIENCE_S and moved_bytes < waited_s * SLOW_BYTES_PER_S


def holder_of(tenant: str) -> str:
    """Return a tenant's name as a holder's; no network has the same."""
    return f"tenant {tenant}"


class Connection(Protocol):
    """What ``Places`` asks of a connection, and how it ends one."""

    tenant: str | None
    """Of its requests; None where it is not known."""
    in_place_of: str | None
    """The holder of whom a slow request was ended to make room for this connection's; None: no such was needed."""
    has_left: bool
    """Whether its client sends no more; it may still read."""
    when_left: Callable[[], object] | None
    """What is called then."""

    @property
    def holder(self) -> str:
        """The tenant of its requests, or the client's network."""

    def is_slow(self) -> bool:
        """Return whether the server waits for the client, which sends or reads slowly."""

    def close(self) -> None:
        """Close the connection, which has no request."""

    def break_off(self) -> None:
        """End the connection behind what was sent of its answer, which cannot go on."""

    def end_request(self) -> None:
        """Refuse the connection's request, which is slow; call ``leave`` or ``rest``."""


class Places:
    """Which connections are open, and which of them have no request. For one event loop."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``most``: the places that are not spare. ``clock`` returns seconds."""
        self.most = most
        self._clock = clock
        self._all: dict[Connection, None] = {}  # the oldest first
        self._spare: set[Connection] = set()  # those of them in a spare place
        # Those without a request, the longest idle first → from when on they may be closed.
        self._idle: dict[Connection, float] = {}
        self._survey_at = float("-inf")

    def enter(self, connection: Connection) -> bool:
        """Give a new connection a place, if need be a spare one. Return False if there is none."""
        if len(self._all) >= self.most and not self._close_oldest():
            if len(self._all) < self.most + SPARE_PLACES or self._close_oldest(spare=True, on_its_way=True):
                self._spare.add(connection)
            elif not self._close_oldest(on_its_way=True):
                return False
        self._idle[connection] = self._clock() + _PATIENCE_S
        self._all[connection] = None
        return True

    def begin(self, connection: Connection, *, is_for_health: bool) -> bool:
        """Note that a request of a connection has come. Return False if it must be refused, because all are busy."""
        self._idle.pop(connection, None)
        if connection not in self._spare or is_for_health:
            return True
        if len(self._all) > self.most and not self._close_oldest():
            connection.in_place_of = self._end_slow_requests()
            if connection.in_place_of is None and not self._close_oldest(on_its_way=True):
                return False
        self._spare.remove(connection)
        return True

    def rest(self, connection: Connection) -> None:
        """Note that a connection is without a request, and may be closed to make room."""
        connection.tenant = connection.in_place_of = None
        if connection in self._all:
            self._idle[connection] = self._clock()

    def leave(self, connection: Connection) -> None:
        """Forget a connection, because it is closed."""
        self._all.pop(connection, None)
        self._idle.pop(connection, None)
        self._spare.discard(connection)

    def is_spare(self, connection: Connection) -> bool:
        """Return whether a connection has a spare place, which it must not keep behind its answer."""
        return connection in self._spare

    def is_idle(self, connection: Connection) -> bool:
        """Return whether a connection is without a request, and in no spare place."""
        return connection in self._idle and connection not in self._spare

    def _close_oldest(self, *, spare: bool = False, on_its_way: bool = False) -> bool:
        """Close the connection that is idle for longest, also if its request is ``on_its_way``.

        ``spare``: one in a spare place, else one in another. Return whether there was one.
        """
        now = self._clock()
        idle = ((each, since) for each, since in self._idle.items() if (each in self._spare) is spare)
        oldest = next((each for each, since in idle if on_its_way or since <= now), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def _end_slow_requests(self) -> str | None:
        """End slow requests of the holder with most of them, those of the newest connections, and return the holder.

        None if each holder keeps its tenth, or if that was found just now.
        """
        if self._clock() < self._survey_at:
            return None
        slow: dict[str, list[Connection]] = defaultdict(list)
        for connection in self._all:
            if connection.is_slow():
                slow[connection.holder].append(connection)
        holder, of_holder = max(slow.items(), key=lambda item: len(item[1]), default=("", []))
        above = min(len(of_holder) - max(1, self.most // 10), 1 + self.most // 100)  # several, as surveys cost time
        if above <= 0:
            self._survey_at = self._clock() + _SURVEY_EVERY_S
            return None
        for connection in of_holder[-above:]:
            connection.end_request()
        return holder
