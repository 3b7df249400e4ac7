"""Every use of Celery's and kombu's private API, in one place; the tests name what each relies on.

    take_pops       read BRPOP's replies here in place of kombu, which ends the worker on a message that is not JSON,
                    has bad base64 or lacks a property, and takes one message at a time
    gate_pops       send BRPOP only while there is room, and not at once again to a key that is no list
    guard_control   drop a malformed broadcast, on which stock kombu ends the worker
    ask_to_stop     end the worker's main loop, from any thread

Written against celery 5.7.0 and kombu 5.7.0, which pyproject.toml pins.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from queue import Empty
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import redis
from celery.worker import state
from kombu.connection import Connection
from kombu.transport.redis import Channel
from redis.exceptions import RedisError, ResponseError

from omni_jobs.broker.hints import POISON_SUFFIX, read_hints
from omni_jobs.errors import BadMessage

if TYPE_CHECKING:
    from workers.consumer.pool import StagePool

logger = logging.getLogger(__name__)

_ALONE_AFTER_S = 0.003  # some turns of Celery's hub
# A queue's poison list holds its newest bad messages, and of each the beginning: at most 4 MB a queue.
_MAX_POISON = 1_000
_MAX_POISON_BYTES = 4096
_NO_LIST_PAUSE_S = 1.0  # well below the least stall_after_s


def take_pops(channel: Channel, pool: StagePool) -> None:
    """Hand the hints of the channel's messages to the pool as they are popped; kombu sees an empty BRPOP each time.

    Hints bypass kombu and Celery, because a message's way through those costs more than all other work on its hints.

    Relies on: ``Channel._brpop_read`` reading through the client's ``parse_response``, which
    applies redis-py's response callbacks; ``None`` being what a BRPOP without a message gives.
    """
    channel.client.set_response_callback("BRPOP", _PopReader(channel, pool).read)


class _PopReader:
    """Reads the replies to one channel's BRPOPs, and more of the queue while there is room."""

    def __init__(self, channel: Channel, pool: StagePool) -> None:
        self._channel = channel
        self._pool = pool
        # redis-py's own client: kombu's would put the key prefix before a key that has it.
        self._client = redis.Redis(connection_pool=channel.pool)
        self._read_at = -math.inf

    def read(self, reply: Any, **options: Any) -> None:
        """Take a reply: a key and a message, or nothing. Return None, which kombu takes for an empty BRPOP."""
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


def gate_pops(channel: Channel, has_room: Callable[[], bool]) -> None:
    """Let the channel pop only while ``has_room()`` is true; Celery's hub calls it on every turn.

    When a queue's key is no list, log that and pop again later, because stock Celery ends the worker on it, and each
    worker that is started after it.

    Relies on: ``MultiChannelPoller`` asking ``channel.qos.can_consume`` before it sends BRPOP, and reading
    the reply with ``channel.handlers``, which raises ``Empty`` when there is no message.
    """
    read: Callable[..., Any] = channel.handlers["BRPOP"]
    ask_again_at = -math.inf

    def read_list(**options: Any) -> Any:
        nonlocal ask_again_at
        try:
            return read(**options)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            queues = ", ".join(channel.active_queues)
            logger.error("nothing can be taken of %s, whose key in the broker is no list: %s", queues, error)
            ask_again_at = time.monotonic() + _NO_LIST_PAUSE_S
            raise Empty from None

    def can_consume(qos: Any) -> bool:
        return time.monotonic() >= ask_again_at and has_room()

    channel.handlers["BRPOP"] = read_list
    channel.qos.can_consume = MethodType(can_consume, channel.qos)


def guard_control(connection: Connection) -> None:
    """Make the connection log and drop malformed broadcasts of remote control, on which stock kombu ends the worker.

    Relies on: the transport's one poller, ``cycle``. The hub calls its ``on_readable`` through
    ``Transport.on_readable`` for every channel, also after a reset; it raises ``Empty`` when there is no message.
    """
    cycle = connection.transport.cycle
    on_readable = cycle.on_readable

    def guarded(fileno: int) -> Any:
        try:
            return on_readable(fileno)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            logger.exception("a malformed broadcast is dropped")
            raise Empty from None

    cycle.on_readable = guarded


def ask_to_stop(exit_code: int) -> None:
    """End Celery's main loop at its next turn, and then the process, with the first call's ``exit_code``.

    For any thread. The consumer stops first, then the pool.

    Relies on: ``celery.worker.state.should_stop``, which Celery's own SIGTERM handler sets.
    """
    if state.should_stop in (None, False):
        state.should_stop = exit_code


def stop_asked() -> bool:
    """Return whether a signal or :func:`ask_to_stop` wants the worker to end."""
    return any(flag not in (None, False) for flag in (state.should_stop, state.should_terminate))
