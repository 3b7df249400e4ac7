"""``DoorbellMetrics``: counts the doorbells of a process."""

from collections.abc import Collection

from omni_jobs.broker.relay_observer import RelayObserver
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.metrics.process_metrics import ProcessMetrics


class DoorbellMetrics(RelayObserver):
    """Counts the queues that were rung for, and those of which the broker took no doorbell."""

    def __init__(self, metrics: ProcessMetrics) -> None:
        self._doorbells = metrics.doorbells

    def rang(self, queues: Collection[str]) -> None:
        self._doorbells.labels("rung").inc(len(queues))

    def failed(self, queues: Collection[str], error: BrokerUnavailable) -> None:
        self._doorbells.labels("failed").inc(len(queues))
