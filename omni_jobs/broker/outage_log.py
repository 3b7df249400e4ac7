"""``OutageLog``: the relay's observer that logs when the broker goes away and when it is back."""

import logging
from collections.abc import Collection

from omni_jobs.broker.relay_observer import RelayObserver
from omni_jobs.errors import BrokerUnavailable

logger = logging.getLogger(__name__)


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
