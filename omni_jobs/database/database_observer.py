"""``DatabaseObserver``: what can be heard of a process's transactions."""

from omni_jobs.errors import DatabaseUnavailable


class DatabaseObserver:
    """Hears of transactions that the database did not take, on the threads that made them. Each returns at once."""

    def retried(self, why: str) -> None:
        """A transaction is tried again after a fault that may pass; ``why`` is the driver's."""

    def gave_up(self, error: DatabaseUnavailable) -> None:
        """A transaction was given up with this error."""
