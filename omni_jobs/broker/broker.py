"""``Broker``: the queues in Redis, one for every stage of every pipeline, and the publishing of hints into them.

Celery workers consume the queues (``omni_jobs.broker.celery_app``). A process that only publishes does not load Celery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from omni_jobs.broker.hints import write_hints
from omni_jobs.jobs import Hint
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.settings import Settings

if TYPE_CHECKING:
    from omni_jobs.broker.redis_lists import RedisLists

logger = logging.getLogger(__name__)


class Broker:
    """Publishes hints into the queues of all stages. Safe for threads. Connects to Redis when it is first used."""

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        self.per_message = {  # the most hints of a message, by queue
            pipeline.queue(name): stage.hints_per_message(settings.hints_per_message)
            for pipeline in pipelines.values()
            for name, stage in pipeline.stages.items()
        }
        self._settings = settings

    @cached_property
    def _lists(self) -> RedisLists:
        from omni_jobs.broker.redis_lists import RedisLists  # takes long to load, and the API serves meanwhile

        return RedisLists(self._settings.broker_url.get_secret_value(), self._settings.broker_key_prefix)

    def publish(self, hints: Iterable[Hint]) -> dict[str, int]:
        """Publish hints. Return how many messages each of their queues has then, by the queue's name.

        A hint whose queue belongs to no pipeline is logged and dropped. Raises BrokerUnavailable: a caller that has
        committed logs it and goes on, because the rescuer republishes the hints.
        """
        by_queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for hint in hints:
            by_queue[hint.queue].append((hint.stage_run_id, hint.attempt))
        depths = {}
        for name, pairs in by_queue.items():
            if name not in self.per_message:
                logger.error("no queue %s: %d hints stay unpublished; is its pipeline gone?", name, len(pairs))
                continue
            size = self.per_message[name]
            messages = [write_hints(name, pairs[start : start + size]) for start in range(0, len(pairs), size)]
            depths[name] = self._lists.push(name, messages)
        return depths

    def depth(self, queue_name: str) -> int:
        """Return how many messages, each of one or more hints, wait in a queue. Raises BrokerUnavailable."""
        return self._lists.length(queue_name)

    def depths(self) -> dict[str, int]:
        """Return how many messages wait in each queue, by its name. Raises BrokerUnavailable."""
        return {name: self.depth(name) for name in self.per_message}

    def close(self) -> None:
        """Close all connections to Redis."""
        self._lists.close()
