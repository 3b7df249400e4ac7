"""``Relay``: rings doorbells from a thread of its own, so that a slow broker delays no transaction."""

import logging
from collections.abc import Collection, Iterable
from itertools import chain

from omni_jobs.batch_thread import BatchThread
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.outage_log import OutageLog
from omni_jobs.broker.relay_observer import RelayObserver
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.observers import Observers

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0


class Relay:
    """Rings the doorbells of queues soon, each once for all who asked meanwhile. ``close`` it; safe for threads."""

    def __init__(self, broker: Broker, observers: Iterable[RelayObserver] = ()) -> None:
        """Start the thread, which tells the observers, and the log of outages."""
        self._broker = broker
        self._observers = Observers[RelayObserver]((OutageLog(), *observers))
        self._thread: BatchThread[Collection[str]] = BatchThread("relay", self._ring)
        self._thread.start()

    def ring(self, queues: Collection[str]) -> None:
        """Ring the doorbells of these queues soon. Where that fails, the workers find the work with their next poll."""
        if queues:
            self._thread.put(queues)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Ring for all who have asked, then end the thread. Wait ``timeout_s`` for that at the longest."""
        self._thread.close(timeout_s)

    def _ring(self, batch: Collection[Collection[str]]) -> None:
        queues = set(chain.from_iterable(batch))
        if not queues:  # the end of the thread, which tells nothing of the broker
            return
        try:
            self._broker.ring(queues)
        except BrokerUnavailable as error:
            self._observers.tell(RelayObserver.failed, queues, error)
        except Exception:  # a bug: the next doorbell may go well
            logger.exception("no doorbell for %s", ", ".join(sorted(queues)))
        else:
            self._observers.tell(RelayObserver.rang, queues)
