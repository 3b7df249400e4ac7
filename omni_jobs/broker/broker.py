"""``Broker``: the queues in Redis, one for every stage of every pipeline, and the publishing of hints into them.

A queue is a list of messages in Redis. Celery workers consume it (``omni_jobs.broker.celery_app``). A process that
only publishes does not load Celery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omni_jobs.broker.hints import write_hints
from omni_jobs.errors import BrokerUnavailable, ConfigError
from omni_jobs.jobs import Hint
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.settings import Settings

if TYPE_CHECKING:
    from redis import Redis  # redis takes long to load, and the API serves meanwhile

logger = logging.getLogger(__name__)

CONNECTION_OPTIONS: Mapping[str, Any] = {
    "socket_timeout": 5.0,  # seconds; a hung broker must not hold up a publisher for ever
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_connections": 64,
}
"""Options of redis-py for every connection to the broker."""


class Broker:
    """Publishes hints into the queues of all stages. Safe for threads. Connects to Redis when it is first used.

    Then it raises ConfigError for a URL that redis-py refuses.
    """

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        self.per_message = {  # the most hints of a message, by queue
            pipeline.queue(name): stage.hints_per_message(settings.hints_per_message)
            for pipeline in pipelines.values()
            for name, stage in pipeline.stages.items()
        }
        self._settings = settings

    @cached_property
    def _redis(self) -> Redis:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
        from redis.retry import Retry

        url = self._settings.broker_url.get_secret_value()
        try:
            client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **CONNECTION_OPTIONS)
            client.connection_pool.make_connection()  # connects to nothing, and refuses unknown options
        except (ValueError, TypeError, RedisError):
            raise ConfigError("redis-py does not take this URL", field="OMNI_JOBS_BROKER_URL") from None
        return client

    def publish(self, hints: Iterable[Hint]) -> None:
        """Publish hints into their queues, as ``publish_to`` does. Raises BrokerUnavailable, perhaps after some queues.

        A caller that has committed logs the error and goes on, because the rescuer republishes the hints.
        """
        by_queue: dict[str, list[Hint]] = defaultdict(list)
        for hint in hints:
            by_queue[hint.queue].append(hint)
        for name, its_hints in by_queue.items():
            self.publish_to(name, its_hints)

    def publish_to(self, queue_name: str, hints: Sequence[Hint]) -> int:
        """Publish one or more hints of a queue. Return how many messages it has then. Raises BrokerUnavailable.

        If the queue belongs to no pipeline, the hints are logged and dropped, and 0 is returned.
        """
        if queue_name not in self.per_message:
            logger.error("no queue %s: %d hints stay unpublished; is its pipeline gone?", queue_name, len(hints))
            return 0
        size = self.per_message[queue_name]
        pairs = [(hint.stage_run_id, hint.attempt) for hint in hints]
        messages = [write_hints(queue_name, pairs[start : start + size]) for start in range(0, len(pairs), size)]

        def push() -> int:  # Celery's own way of sending costs a third of a millisecond for each message
            with _broker_errors("does not take hints"):
                return int(self._redis.lpush(self._key(queue_name), *messages))

        try:
            return push()
        except BrokerUnavailable:
            # A broker that was restarted may have closed the connection. Hints that come twice do no harm.
            return push()

    def depth(self, queue_name: str) -> int:
        """Return how many messages, each of one or more hints, wait in a queue. Raises BrokerUnavailable."""
        with _broker_errors("does not answer"):
            return int(self._redis.llen(self._key(queue_name)))

    def depths(self) -> dict[str, int]:
        """Return how many messages wait in each queue, by its name. Raises BrokerUnavailable."""
        return {name: self.depth(name) for name in self.per_message}

    def close(self) -> None:
        """Close all connections to Redis."""
        self._redis.close()

    def _key(self, queue_name: str) -> str:
        return self._settings.broker_key_prefix + queue_name


@contextmanager
def _broker_errors(problem: str) -> Iterator[None]:
    """Context manager: raises the errors of Redis in its block as BrokerUnavailable, which names the problem."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as error:
        raise BrokerUnavailable(f"the broker {problem}: {error}") from error
