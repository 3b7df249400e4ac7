"""``LeaseMetrics``: when a worker renewed its lease."""

from omni_jobs.metrics.worker_metrics import WorkerMetrics
from workers.execution.observers.ledger_observer import LedgerObserver


class LeaseMetrics(LedgerObserver):
    """Notes each renewal, whose age the metrics show."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def renewed(self) -> None:
        self._metrics.renew()
