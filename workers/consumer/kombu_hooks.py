"""Every use of Celery's and kombu's private API, in one place; the tests name what each relies on.

    take_pops       read BRPOP's replies in place of kombu, which ends the worker on a message that is not JSON,
                    has bad base64 or lacks a property
    gate_pops       send BRPOP only while there is room, and not at once again to a key that is no list
    guard_control   drop a malformed broadcast, on which stock kombu ends the worker
    guard_banner    start also where stdout takes nothing, as a log on a full disk
    ask_to_stop     end the worker's main loop, from any thread
    tell_true_counts, publish_events, …    Celery's events say what this worker does
    drop_left_events    delete the events that wait for a monitor that takes none

Written against celery 5.7.0 and kombu 5.7.0, which pyproject.toml pins.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty
from types import MethodType
from typing import Any

from celery.apps import worker as worker_program
from celery.events.dispatcher import EventDispatcher
from celery.events.event import Event
from celery.utils.time import utcoffset
from celery.worker import state
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel
from redis.exceptions import ResponseError

logger = logging.getLogger(__name__)

_NO_LIST_PAUSE_S = 1.0  # so that the log stays readable


def take_pops(channel: Channel, read: Callable[..., None]) -> None:
    """Hand the replies to the channel's BRPOPs to ``read``, which returns None: kombu sees an empty BRPOP each time.

    Doorbells bypass kombu and Celery, because anybody who reaches the broker can write to a queue, and a doorbell is
    one whatever it holds.

    Relies on: ``Channel._brpop_read`` reading through the client's ``parse_response``, which
    applies redis-py's response callbacks; ``None`` being what a BRPOP without a message gives.
    """
    channel.client.set_response_callback("BRPOP", read)


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


def guard_banner(instance: Any, **_: Any) -> None:
    """Make a worker whose banner cannot be written start without it. A receiver of Celery's signal ``celeryd_init``.

    Relies on: ``Worker.on_start`` calling its own ``emit_banner``, whose ``print`` raises OSError on a full disk.
    """
    emit = instance.emit_banner

    def emit_if_possible() -> None:
        with suppress(OSError):
            emit()

    instance.emit_banner = emit_if_possible


def leave_out_what_is_no_json(instance: Any, **_: Any) -> None:
    """Make a worker start without its banner, and stop without a word. A receiver of Celery's ``celeryd_init``.

    Relies on: ``celery.apps.worker`` saying by its own ``safe_say`` that it shuts down, which no log has.
    """
    instance.emit_banner = lambda: None
    worker_program.safe_say = lambda *_: None


def tell_true_counts(dispatcher: EventDispatcher, counts: Callable[[], Mapping[str, int]]) -> None:
    """Put ``counts()`` into the events of this worker, such as its heartbeat, in place of Celery's of its own tasks.

    Relies on: ``Heart._send`` calling its dispatcher's ``send`` with the fields ``active`` and ``processed``.
    """
    send = dispatcher.send

    def send_truth(type: str, **fields: Any) -> Any:
        return send(type, **({**fields, **counts()} if type.startswith("worker-") else fields))

    dispatcher.send = send_truth


def sends_task_events(dispatcher: EventDispatcher) -> bool:
    """Return whether the dispatcher is to send events of tasks.

    Relies on: ``groups`` being empty for all events, as by ``-E``, and ``enable_events`` adding ``task`` to others.
    """
    return not dispatcher.groups or "task" in dispatcher.groups


def publish_events(dispatcher: EventDispatcher, events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Publish events of tasks, types with their fields, as one message. Raises ``connection_errors``.

    Celery's own ``send`` keeps without bound what the broker does not take, and waits for it once more with each event.

    Relies on: ``EventReceiver`` taking a list of events, each with a ``clock``; ``EventDispatcher`` having a
    ``producer`` while it is enabled.
    """
    producer = dispatcher.producer
    if producer is None:
        return
    own = {"hostname": dispatcher.hostname, "pid": dispatcher.pid, "utcoffset": utcoffset()}
    producer.publish(
        [Event(kind, clock=dispatcher.clock.forward(), **own, **fields) for kind, fields in events],
        routing_key="task.multi",
        exchange=dispatcher.exchange.name,
        declare=[dispatcher.exchange],
        serializer=dispatcher.serializer,
        headers=dispatcher.headers,
        delivery_mode=dispatcher.delivery_mode,
        retry=False,
    )


def drop_left_events(dispatcher: EventDispatcher, most: int) -> None:
    """Delete what waits for each monitor for which more than ``most`` messages do. Raises ``connection_errors``.

    Such a monitor was killed, or hangs. Of one that was killed kombu forgets the queue in an hour, and never while
    another monitor lives; until then all events would gather there, in the memory of the broker.

    Relies on: ``Channel.get_table``, whose rows end with the name of a queue, which is its list's key.
    """
    if dispatcher.producer is None:
        return
    channel = dispatcher.producer.channel
    for *_, queue in channel.get_table(dispatcher.exchange.name):
        with channel.conn_or_acquire() as client:
            if client.llen(queue) > most and client.delete(queue):
                logger.warning("events in %s were dropped: more than %d messages wait for its monitor", queue, most)


def connection_errors(dispatcher: EventDispatcher) -> tuple[type[Exception], ...]:
    """Return the errors of a broker that is away or takes nothing."""
    connection = dispatcher.connection
    return (OSError, OperationalError, *connection.connection_errors, *connection.channel_errors)


def ask_to_stop(exit_code: int) -> None:
    """End Celery's main loop at its next turn, and then the process, with the first call's ``exit_code``.

    For any thread. The consumer stops first, then the pool.

    Relies on: ``celery.worker.state.should_stop``, which Celery's own SIGTERM handler sets.
    """
    if not _is_set(state.should_stop):
        state.should_stop = exit_code


def stop_asked() -> bool:
    """Return whether a signal or :func:`ask_to_stop` wants the worker to end."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def _is_set(flag: int | bool | None) -> bool:
    return flag is not None and flag is not False  # 0 is the exit code that SIGTERM asks for, and equals False
