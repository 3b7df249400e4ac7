"""``Broker``: the queues in Redis, one for every stage of every pipeline, and the doorbells in them.

A queue is a list of messages in Redis. Celery workers consume it (``omni_jobs.broker.celery_app``). A process that
only rings does not load Celery.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from omni_jobs.broker.connection import CONNECTION_OPTIONS, broker_errors, broker_url, unusable
from omni_jobs.broker.doorbell import doorbell
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.priority import Priority, queue_of
from omni_jobs.settings import Settings

if TYPE_CHECKING:
    from redis import Redis  # redis takes long to load, and the API serves meanwhile

logger = logging.getLogger(__name__)

_WRITE_CHECK = "omni-jobs-write-check"
_WRITE_CHECK_LIVES_S = 60
_QUEUE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}@[0-9A-Za-z.\-]{1,20}\.[a-z][a-z0-9_]{0,39}")  # NAME@VERSION.STAGE
_OF_HIGH: Final = queue_of("", Priority.HIGH)
_OTHERS: Final = 64  # doorbells of a stage whose slots are not known: each wakes a worker, which claims all it can


class Broker:
    """Rings the doorbells of all stages' queues. Safe for threads. Connects to Redis when it is first used.

    Then it raises ConfigError for a URL that redis-py refuses, or a file in it that cannot be used.
    """

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        self.slots: dict[str, int] = {}  # a stage's, by queue
        self._instead: dict[str, str] = {}  # by aliases, and queues of high jobs for which no slots are kept
        for pipeline in pipelines.values():
            for name, stage in pipeline.stages.items():
                queue = pipeline.queue(name)
                of_high = queue_of(queue, Priority.HIGH)
                self.slots[queue] = stage.slots
                if stage.slots_for_high:
                    self.slots[of_high] = stage.slots
                else:
                    self._instead[of_high] = queue
        for alias, queue in pipelines.queue_aliases.items():
            of_high = queue_of(queue, Priority.HIGH)
            self._instead |= {alias: queue, queue_of(alias, Priority.HIGH): self._instead.get(of_high, of_high)}
        self._settings = settings

    @cached_property
    def _redis(self) -> Redis:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
        from redis.retry import Retry

        url = broker_url(self._settings)
        try:
            client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **CONNECTION_OPTIONS)
            client.connection_pool.make_connection()  # connects to nothing, and refuses unknown options
        except (ValueError, TypeError, RedisError):
            raise unusable() from None
        return client

    def ring(self, queues: Collection[str]) -> None:
        """Put a doorbell into each of these queues, which keeps as many as its stage has slots.

        NAME.STAGE is the queue of the newest version: so the queues are called of jobs that an older build took. The
        queue of a version whose file this process has not read is rung as well, because others may serve it. A name
        that can be none is logged and left out. Raises BrokerUnavailable, perhaps after some queues.
        """
        wanted = {self._instead.get(name, name) for name in queues}
        most = {name: self.slots[name] for name in wanted.intersection(self.slots)}
        for name in sorted(wanted.difference(most)):
            # Of a high job both are rung: whether its stage keeps slots for high jobs, only its file says.
            stages = [each for each in {name, name.removesuffix(_OF_HIGH)} if _QUEUE.fullmatch(each)]
            if not stages:
                logger.error("no queue %s: is its pipeline gone?", name)
                continue
            most |= {each: self.slots.get(each, _OTHERS) for each in (name, *stages)}
        if not most:
            return

        def push() -> None:  # Celery's own way of sending costs a third of a millisecond for each message
            with self._errors("takes no doorbell"), self._redis.pipeline(transaction=False) as pipe:
                for name, count in sorted(most.items()):
                    pipe.lpush(self._key(name), doorbell(name))
                    pipe.ltrim(self._key(name), 0, count - 1)
                pipe.execute()

        try:
            push()
        except BrokerUnavailable:
            push()  # a broker that was restarted may have closed the connection

    def wait_for_doorbell(self, queue_name: str, within_s: int) -> bool:
        """Take a doorbell out of a queue, and return whether one came in time. Raises BrokerUnavailable."""
        with self._errors("gives no doorbell"):
            return self._redis.brpop([self._key(self._instead.get(queue_name, queue_name))], within_s) is not None

    def depth(self, queue_name: str) -> int:
        """Return how many doorbells a queue holds. Raises BrokerUnavailable."""
        with self._errors("does not answer"):
            return int(self._redis.llen(self._key(self._instead.get(queue_name, queue_name))))

    def check(self) -> None:
        """Raise BrokerUnavailable unless the broker takes writes: one that is full or a replica takes no doorbells."""
        with self._errors("takes no writes"):
            self._redis.set(self._key(_WRITE_CHECK), 1, ex=_WRITE_CHECK_LIVES_S)

    def eviction_policy(self) -> str | None:
        """Return what the broker does when its memory is full; None if it does not say. Raises BrokerUnavailable."""
        with self._errors("does not answer"):
            policy: object = self._redis.info("memory").get("maxmemory_policy")
        return policy if isinstance(policy, str) else None

    def depths(self) -> dict[str, int]:
        """Return how many doorbells each queue holds, by its name. Raises BrokerUnavailable."""
        return {name: self.depth(name) for name in self.slots}

    def close(self) -> None:
        """Close all connections to Redis."""
        self._redis.close()

    def _key(self, queue_name: str) -> str:
        return self._settings.broker_key_prefix + queue_name

    def _errors(self, problem: str) -> AbstractContextManager[None]:
        return broker_errors(self._settings, problem)
