"""``HighDoorbells``: takes the doorbells of high jobs, of a stage that keeps slots for them.

They have a queue of their own, which a worker listens to as long as any slot is free. Celery's consumer listens to the
stage's queue, and only while there is room for any job. These two cannot share a connection: one that waits in a BRPOP
for high jobs alone would not hear of others when there is room for them again.
"""

import logging
import threading
from collections.abc import Callable

from omni_jobs.broker.broker import Broker
from omni_jobs.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

_WAIT_S = 1  # at a time for a doorbell, because the thread does not see ``close`` while it waits
_PAUSE_S = 1.0  # while the broker is away


class HighDoorbells:
    """A thread that takes doorbells out of a queue while there is room. The pool owns it."""

    def __init__(self, broker: Broker, queue: str, *, has_room: Callable[[], bool], ring: Callable[[], None]) -> None:
        """Prepare the thread, which calls ``has_room`` before it waits for a doorbell, and ``ring`` for each."""
        self._broker = broker
        self._queue = queue
        self._has_room = has_room
        self._ring = ring
        self._room_came = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="high-doorbells", daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def listen(self) -> None:
        """Listen again, because there may be room. For any thread."""
        self._room_came.set()

    def close(self) -> None:
        """Take no more doorbells, but for one that comes within a second, which goes back into the queue."""
        self._closed.set()
        self._room_came.set()

    def _listen(self) -> None:
        is_away = False
        while not self._closed.is_set():
            self._room_came.clear()
            if not self._may_take():
                self._room_came.wait()
                continue
            try:
                self._take()
                is_away = False
            except BrokerUnavailable as error:
                if not is_away:
                    logger.error("doorbells of high jobs are not heard, polls find them: %s", error)
                is_away = True
                self._closed.wait(_PAUSE_S)

    def _take(self) -> None:
        if not self._broker.wait_for_doorbell(self._queue, _WAIT_S):
            return
        if self._may_take():
            self._ring()
        else:  # the room went while this waited: another worker may have some
            self._broker.ring({self._queue})

    def _may_take(self) -> bool:
        return not self._closed.is_set() and self._has_room()
