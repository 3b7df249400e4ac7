"""Every use of Celery's and kombu's private API, in one place; the tests name what each relies on.

    take_pops       what BRPOP gives is read here in place of kombu, which ends the worker on a message that
                    is not JSON, has bad base64 or lacks a property, and takes one message at a time
    gate_pops       BRPOP is sent only while there is room, and not at once again to a key that is no list
    guard_control   a malformed broadcast is dropped: stock kombu ends the worker on one
    ask_to_stop     ends the worker's main loop, from any thread

Written against celery 5.7.0 and kombu 5.7.0, which pyproject.toml pins.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from queue import Empty
from types import MethodType
from typing import Any, cast

import redis
from celery.worker import state
from kombu.connection import Connection
from kombu.transport.redis import Channel
from redis.exceptions import RedisError, ResponseError

from omni_jobs.broker.hints import POISON_SUFFIX, read_hints
from omni_jobs.errors import BadMessage

__all__ = ["ask_to_stop", "gate_pops", "guard_control", "stop_asked", "take_pops"]

logger = logging.getLogger(__name__)

_MOMENT_S = 0.003  # some turns of Celery's hub
# Of what is no hint: the newest, and of each its beginning. At most 4 MB a queue.
_MAX_POISON = 1_000
_MAX_POISON_BYTES = 4096
_NO_LIST_PAUSE_S = 1.0  # well below the least stall_after_s


def take_pops(
    channel: Channel,
    *,
    queue: str,
    answered: Callable[[], None],
    offer: Callable[[Sequence[tuple[int, int]]], None],
    room: Callable[[], int],
    per_message: int,
) -> None:
    """Hand what BRPOP gives straight to the pool, and what else waits while there is room; kombu sees an empty BRPOP.

    A message's way through kombu and Celery costs more than all that is done for its hints. Whatever is
    not a hint moves to ``<queue>.poison``. ``answered`` is called for every BRPOP that
    asked for ``queue`` and got its answer, the empty ones included: remote control may have set the consumer
    to other queues. ``per_message``: the hints of a full message; no more than that is taken too
    much, for what one worker holds another cannot take.

    Relies on: ``Channel._brpop_read`` reading through the client's ``parse_response``, which
    applies redis-py's response callbacks; ``None`` being what a BRPOP without a message gives.
    """
    last = -math.inf
    # redis-py's own client: kombu's would put the key prefix before a key that has it.
    client = redis.Redis(connection_pool=channel.pool)

    def take(reply: Any, **options: Any) -> None:
        nonlocal last
        if queue in channel.active_queues:
            answered()
        if reply:
            key, raw = reply
            hints = give(key, raw)
            # A message that is alone is what a queue without a backlog gives: a look for more would find none.
            is_alone = hints < per_message and time.monotonic() - last > _MOMENT_S
            if not is_alone:
                take_more(key)
            last = time.monotonic()

    def take_more(key: bytes) -> None:
        while (wanted := room()) > 0:
            count = max(1, wanted // per_message)
            try:
                found = cast("list[bytes] | None", client.rpop(key, count))
            except RedisError as error:
                logger.warning("%s gives no more at once: %s", _text(key), error)
                return
            for raw in found or ():
                give(key, raw)
            if len(found or ()) < count:
                return

    def give(key: bytes, raw: bytes) -> int:
        hints: Sequence[tuple[int, int]] = ()
        try:
            hints = read_hints(raw)
        except BadMessage as error:
            logger.error("a bad message of %d bytes moves to %s%s: %s", len(raw), _text(key), POISON_SUFFIX, error)
            _poison(client, _text(key) + POISON_SUFFIX, raw)
        else:
            offer(hints)
        return len(hints)

    channel.client.set_response_callback("BRPOP", take)


def _poison(client: redis.Redis, key: str, raw: bytes) -> None:
    try:
        with client.pipeline() as pipe:
            pipe.lpush(key, raw[:_MAX_POISON_BYTES])
            pipe.ltrim(key, 0, _MAX_POISON - 1)
            pipe.execute()
    except RedisError as error:
        logger.error("a bad message is lost, %s does not take it: %s", key, error)


def _text(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def gate_pops(channel: Channel, has_room: Callable[[], bool]) -> None:
    """Let the channel pop only while ``has_room()``; asked on every turn of Celery's hub.

    Where a queue's key holds something else than a list, say so and ask again later: stock Celery ends
    the worker, and so each that follows it.
    Relies on: ``MultiChannelPoller`` asking ``channel.qos.can_consume`` before it sends BRPOP, and reading
    its answer with ``channel.handlers``; ``Empty`` being how that says that nothing came of it.
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
    """Drop malformed broadcasts (remote control) instead of ending the worker.

    Relies on: the transport's one poller, ``cycle``, whose ``on_readable`` the hub calls through
    ``Transport.on_readable`` for every channel, those of later resets included; ``Empty`` being
    how it says that nothing came of it.
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
    """Celery's main loop ends at its next turn: consumer first, then the pool drains.

    Relies on: ``celery.worker.state.should_stop``, which Celery's own SIGTERM handler sets.
    """
    if state.should_stop in (None, False):
        state.should_stop = exit_code


def stop_asked() -> bool:
    """Whether a signal or :func:`ask_to_stop` wants the worker to end."""
    return any(flag not in (None, False) for flag in (state.should_stop, state.should_terminate))
