"""``Relay``: publishes hints from a thread of its own, so that a slow broker delays no transaction."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from omni_jobs.batch_thread import BatchThread
from omni_jobs.broker.broker import Broker
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.jobs import Hint

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
_MOST_POPPED_PER_S = 10_000  # messages, by all workers of a stage; measurements gave fewer
_LONGEST_HOLD_S = 1.0


class Relay:
    """Publishes hints soon, from a thread of its own. ``close`` it; safe for threads.

    A message takes some 300 bytes of the broker, however few hints it carries. So while a queue is long, the relay
    holds a message back until it carries as many hints as it may, but no longer than a second, and not so long that
    the workers could have emptied the queue.
    """

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread. ``clock`` returns seconds."""
        self._broker = broker
        self._clock = clock
        self._closing = False
        self._held: dict[str, list[Hint]] = {}  # incomplete messages, by queue
        self._held_until: dict[str, float] = {}  # by queue
        self._busy_until: dict[str, float] = {}  # by queue: workers cannot have emptied it earlier
        self._thread: BatchThread[Sequence[Hint]] = BatchThread("relay", self._publish, next_timer=self._next_release)
        self._thread.start()

    def send(self, hints: Sequence[Hint]) -> None:
        """Publish hints soon. A hint that cannot be published is dropped, because the rescuer republishes it."""
        if hints:
            self._thread.put(hints)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Publish all hints that wait, then end the thread. Wait ``timeout_s`` for that at the longest."""
        self._closing = True
        self._thread.close(timeout_s)

    def _next_release(self) -> float | None:
        return min(self._held_until.values(), default=None)

    def _publish(self, batch: Sequence[Sequence[Hint]]) -> None:
        due = self._due(chain.from_iterable(batch))
        try:
            for name, hints in due.items():
                depth = self._broker.publish_to(name, hints)
                self._busy_until[name] = self._clock() + depth / _MOST_POPPED_PER_S
        except BrokerUnavailable as error:
            logger.warning("up to %d hints wait for the rescuer: %s", sum(map(len, due.values())), error)
        except Exception:  # a bug: the next hints may go well
            logger.exception("up to %d hints wait for the rescuer", sum(map(len, due.values())))

    def _due(self, hints: Iterable[Hint]) -> dict[str, list[Hint]]:
        """Return the hints to publish now by queue, of these and of the held ones. Hold the others."""
        at = self._clock()
        by_queue, self._held = self._held, {}
        for hint in hints:
            by_queue.setdefault(hint.queue, []).append(hint)
        due: dict[str, list[Hint]] = {}
        for name, waiting in by_queue.items():
            release_at = min(self._busy_until.get(name, at), at + _LONGEST_HOLD_S)
            until = self._held_until.pop(name, release_at)
            is_released = self._closing or until <= at
            rest = 0 if is_released else len(waiting) % self._broker.per_message.get(name, 1)
            complete = len(waiting) - rest
            if complete:
                due[name] = waiting[:complete]
            if rest:
                self._held[name] = waiting[complete:]
                # A message that was completed leaves only hints that have just come.
                self._held_until[name] = release_at if complete else until
        return due
