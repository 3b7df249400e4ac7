"""``RelayObserver``: what can be heard of a process's doorbells."""

from collections.abc import Collection

from omni_jobs.errors import BrokerUnavailable


class RelayObserver:
    """Hears on the relay's thread what became of each batch of doorbells. Each method returns at once."""

    def rang(self, queues: Collection[str]) -> None:
        """The doorbells of these queues were rung."""

    def failed(self, queues: Collection[str], error: BrokerUnavailable) -> None:
        """Nobody was rung for, because the broker is away: workers find the work with their next poll."""
