"""``Broker``: the queues in Redis, one for every stage of every pipeline.

Celery workers consume the queues (``omni_jobs.broker.celery_app``). A process that only publishes does not load Celery.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_jobs.broker.redis_lists import RedisLists
    from omni_jobs.pipelines.loader import Pipelines
    from omni_jobs.settings import Settings


class Broker:
    """The queues in Redis. Safe for threads. Loads its client and connects when it is first used."""

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        self.per_message = {  # the most hints of a message, by queue
            pipeline.queue(name): stage.hints_per_message(settings.hints_per_message)
            for pipeline in pipelines.values()
            for name, stage in pipeline.stages.items()
        }
        self.queues = list(self.per_message)
        self._url = settings.broker_url
        self._prefix = settings.broker_key_prefix

    @cached_property
    def _lists(self) -> RedisLists:
        from omni_jobs.broker.redis_lists import RedisLists  # takes long to load, and the API serves meanwhile

        return RedisLists(self._url.get_secret_value())

    def push(self, queue_name: str, messages: Sequence[bytes]) -> int:
        """Add messages to a queue. Return how many it has then. Raises BrokerUnavailable."""
        return self._lists.push(self._prefix + queue_name, messages)

    def depth(self, queue_name: str) -> int:
        """Return how many messages, each of several hints, wait in a queue. Raises BrokerUnavailable."""
        return self._lists.length(self._prefix + queue_name)

    def depths(self) -> dict[str, int]:
        """Return how many messages wait, by queue. Raises BrokerUnavailable."""
        return {name: self.depth(name) for name in self.queues}

    def close(self) -> None:
        """Close all connections."""
        self._lists.close()
