"""``EventOutbox``: Celery's events of stage runs, from the pool's event loop to the broker.

The loop only appends to a list. Celery's main thread, whose connection it is, publishes what has gathered, so that a
slow broker delays no stage run. Nothing is kept while nobody wants events, nor beyond a bound.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from celery.events.dispatcher import EventDispatcher

from workers.consumer import kombu_hooks

logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 0.5
_AT_MOST = 10_000  # events that wait; of more the oldest are dropped
_GROUP = 100  # in one message
_PAUSE_S = 10.0  # after the broker took none


class EventOutbox:
    """Gathers events while monitors want them, and publishes them by Celery's dispatcher.

    The pool owns it. ``HookStep`` attaches the dispatcher of each connection, and flushes.
    """

    def __init__(self) -> None:
        """Prepare it; nothing is gathered before a dispatcher is attached."""
        self._dispatcher: EventDispatcher | None = None
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_AT_MOST)
        self._dropped = 0
        self._publish_from = 0.0

    def attach(self, dispatcher: EventDispatcher) -> None:
        """Publish by this dispatcher from now on."""
        self._dispatcher = dispatcher

    @property
    def is_wanted(self) -> bool:
        """Whether task events are enabled: by ``-E`` or by remote control, as Flower does. For any thread."""
        dispatcher = self._dispatcher
        return dispatcher is not None and dispatcher.enabled and kombu_hooks.sends_task_events(dispatcher)

    def send(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Gather an event of this type, with its fields. For any thread."""
        self._dropped += len(self._waiting) == _AT_MOST
        self._waiting.append((kind, fields))

    def flush(self) -> None:
        """Publish what has gathered. For Celery's main thread, which this may block until the broker times out."""
        dispatcher = self._dispatcher
        if dispatcher is None or not self._waiting or time.monotonic() < self._publish_from:
            return
        if self._dropped:
            logger.warning("%d events of stage runs were dropped: they came faster than the broker", self._dropped)
            self._dropped = 0
        gathered = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            for start in range(0, len(gathered), _GROUP):
                kombu_hooks.publish_events(dispatcher, gathered[start : start + _GROUP])
        except kombu_hooks.connection_errors(dispatcher) as error:
            self._publish_from = time.monotonic() + _PAUSE_S
            logger.warning("events of stage runs were dropped: the broker took none: %s", error)
