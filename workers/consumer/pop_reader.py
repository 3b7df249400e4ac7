"""``PopReader``: reads hints from the replies to BRPOP, and keeps messages that hold none in ``<queue>.poison``."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, cast

import redis
from kombu.transport.redis import Channel
from redis.exceptions import RedisError

from omni_jobs.broker.hints import POISON_SUFFIX, read_hints
from omni_jobs.errors import BadMessage

if TYPE_CHECKING:
    from workers.consumer.pool import StagePool

logger = logging.getLogger(__name__)

_ALONE_AFTER_S = 0.003  # some turns of Celery's hub
# A queue's poison list holds its newest bad messages, and of each the beginning: at most 4 MB a queue.
_MAX_POISON = 1_000
_MAX_POISON_BYTES = 4096


class PopReader:
    """Reads the replies to one channel's BRPOPs, and more of the queue while there is room."""

    def __init__(self, channel: Channel, pool: StagePool) -> None:
        self._channel = channel
        self._pool = pool
        # redis-py's own client: kombu's would put the key prefix before a key that has it.
        self._client = redis.Redis(connection_pool=channel.pool)
        self._read_at = -math.inf

    def read(self, reply: Any, **options: Any) -> None:
        """Offer the hints of a BRPOP's reply, a key and a message or nothing, to the pool; pop more while it has room.

        redis-py calls this. Return None, which kombu takes for an empty BRPOP. Redis errors are logged.
        """
        if self._pool.queue in self._channel.active_queues:  # remote control may have set the consumer to others
            self._pool.popped()
        if not reply:
            return
        key, message = reply
        count = self._offer(key, message)
        # A message that comes alone is what a queue without a backlog gives: RPOP would find no more.
        is_alone = count < self._pool.per_message and time.monotonic() - self._read_at > _ALONE_AFTER_S
        if not is_alone:
            self._read_more(key)
        self._read_at = time.monotonic()

    def _read_more(self, key: bytes) -> None:
        """Pop messages while there is room, at most one message's hints too many: no other worker can take those."""
        while (room := self._pool.room()) > 0:
            count = max(1, room // self._pool.per_message)
            try:
                messages = cast("list[bytes]", self._client.rpop(key, count) or [])
            except RedisError as error:
                logger.warning("%s gives no more at once: %s", key.decode("utf-8", "replace"), error)
                return
            for message in messages:
                self._offer(key, message)
            if len(messages) < count:
                return

    def _offer(self, key: bytes, message: bytes) -> int:
        """Offer a message's hints and return their number; move what holds none to ``<queue>.poison``."""
        try:
            hints = read_hints(message)
        except BadMessage as error:
            poison = key.decode("utf-8", "replace") + POISON_SUFFIX
            logger.error("a bad message of %d bytes moves to %s: %s", len(message), poison, error)
            self._keep_poison(poison, message)
            return 0
        self._pool.offer(hints)
        return len(hints)

    def _keep_poison(self, key: str, message: bytes) -> None:
        try:
            with self._client.pipeline() as pipe:
                pipe.lpush(key, message[:_MAX_POISON_BYTES])
                pipe.ltrim(key, 0, _MAX_POISON - 1)
                pipe.execute()
        except RedisError as error:
            logger.error("a bad message is lost, %s does not take it: %s", key, error)
