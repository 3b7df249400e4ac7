"""``RelayObserver``: what can be heard of a process's doorbells. The log of outages is one."""

import logging
from collections.abc import Collection

from omni_jobs.errors import BrokerUnavailable
from omni_jobs.observers import Observers

logger = logging.getLogger(__name__)


class RelayObserver:
    """Hears on the relay's thread what became of each batch of doorbells. Each method returns at once."""

    def rang(self, queues: Collection[str]) -> None:
        """The doorbells of these queues were rung."""

    def failed(self, queues: Collection[str], error: BrokerUnavailable) -> None:
        """Nobody was rung for, because the broker is away: workers find the work with their next poll."""


class OutageLog(RelayObserver):
    """Writes a line when the broker goes away and one when it is back, and not one for each batch."""

    def __init__(self) -> None:
        self._is_away = False

    def rang(self, queues: Collection[str]) -> None:
        if self._is_away:
            logger.info("the broker answers again")
        self._is_away = False

    def failed(self, queues: Collection[str], error: BrokerUnavailable) -> None:
        if not self._is_away:
            logger.warning("workers find work by polling: %s", error)
        self._is_away = True


def relay_observers() -> Observers[RelayObserver]:
    """Return the observers of a process's relay: another one is a class here, or in a file beside, and in this list."""
    return Observers([OutageLog()])
