"""``DatabaseMetrics``: counts the transactions that the database did not take."""

from omni_jobs.database.database_observer import DatabaseObserver
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.metrics.process_metrics import ProcessMetrics


class DatabaseMetrics(DatabaseObserver):
    """Counts faults that may pass, each with another try, and transactions that were given up."""

    def __init__(self, metrics: ProcessMetrics) -> None:
        self._faults = metrics.database_faults

    def retried(self, why: str) -> None:
        self._faults.labels("retried").inc()

    def gave_up(self, error: DatabaseUnavailable) -> None:
        self._faults.labels("given_up").inc()
