"""The broker: one Celery queue per pipeline stage, and the hints that pass through them.

    Broker(settings, pipelines)       the queues: push, depth
    HintPublisher.publish(hints)      several hints per message, grouped by queue
    Relay.send(hints)                 the same from a thread of its own; for whoever must not wait
    write_hints, read_hints           the only ways hints become bytes in a queue, and bytes hints

What consumes them is a Celery worker (:mod:`omni_jobs.broker.celery_app`); whoever only publishes does without Celery.

A message carries ``(stage run id, attempt)`` pairs and nothing else. It may be lost,
late or doubled: the row in SQL is the truth, so nothing here is acknowledged,
retried for long or stored.
"""

from __future__ import annotations

import base64
import binascii
import logging
import queue
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from omni_jobs.errors import BadMessage, BrokerUnavailable

if TYPE_CHECKING:
    from omni_jobs.broker.redis_lists import RedisLists
    from omni_jobs.jobs import Hint
    from omni_jobs.pipelines.stage_config import Pipelines
    from omni_jobs.settings import Settings

__all__ = [
    "POISON_SUFFIX",
    "TASK",
    "Broker",
    "HintPublisher",
    "Relay",
    "hints_in",
    "read_hints",
    "write_hints",
]

logger = logging.getLogger(__name__)

TASK = "omni_jobs.run_stage"
"""The one Celery task; its only argument is a list of ``[stage run id, attempt]``."""

POISON_SUFFIX = ".poison"
"""Messages that are not hints move to the list ``<queue>.poison``."""

_MAX_MESSAGE_BYTES = 256 * 1024
_MAX_HINTS_IN_MESSAGE = 1024
_CLOSE_S = 10.0
_MOST_POPPED_PER_S = 10_000  # messages, by all workers of a stage; more than any have been seen to
_LONGEST_HOLD_S = 1.0


class Broker:
    """The queues in Redis; safe for threads. Loads its client and connects when it is first used."""

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        self.per_message = {
            pipeline.queue(name): stage.hints_per_message(settings.hints_per_message)
            for pipeline in pipelines.values()
            for name, stage in pipeline.stages.items()
        }
        self.queues = list(self.per_message)
        self._url = settings.broker_url
        self._prefix = settings.broker_key_prefix

    @cached_property
    def _lists(self) -> RedisLists:
        from omni_jobs.broker.redis_lists import RedisLists  # takes long to load: the API serves meanwhile

        return RedisLists(self._url.get_secret_value())

    def push(self, queue_name: str, messages: Sequence[bytes]) -> int:
        """How many messages the queue holds then. Raises BrokerUnavailable."""
        return self._lists.push(self._prefix + queue_name, messages)

    def depth(self, queue_name: str) -> int:
        """Messages (each of several hints) waiting in one queue. Raises BrokerUnavailable."""
        return self._lists.length(self._prefix + queue_name)

    def depths(self) -> dict[str, int]:
        """Messages waiting, by queue. Raises BrokerUnavailable."""
        return {name: self.depth(name) for name in self.queues}

    def close(self) -> None:
        """Close all connections."""
        self._lists.close()


class HintPublisher:
    """Puts hints into their stages' queues; safe for threads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.per_message = broker.per_message

    def publish(self, hints: Iterable[Hint]) -> dict[str, int]:
        """Best effort; how many messages each of their queues holds now.

        Raises BrokerUnavailable: callers after a commit log it and go on.
        """
        depths = {}
        for name, pairs in _by_queue(hints).items():
            if name not in self._broker.queues:
                logger.error("no queue %s: %d hints stay unpublished; is its pipeline gone?", name, len(pairs))
                continue
            size = self.per_message[name]
            messages = [write_hints(name, pairs[start : start + size]) for start in range(0, len(pairs), size)]
            depths[name] = self._broker.push(name, messages)
        return depths


def _by_queue(hints: Iterable[Hint]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for hint in hints:
        found[hint.queue].append((hint.stage_run_id, hint.attempt))
    return found


class Relay:
    """Publishes hints from a thread of its own, so that a slow broker holds no transaction up.

    A message costs the broker some 300 bytes whatever it holds. So while a queue is long, what
    does not fill a message waits for more: never so long that a worker could have emptied the queue.
    """

    def __init__(self, publisher: HintPublisher, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher = publisher
        self._clock = clock
        self._waiting: queue.SimpleQueue[Sequence[Hint] | None] = queue.SimpleQueue()
        self._held: dict[str, list[Hint]] = {}  # by queue, fewer than a message holds
        self._held_until: dict[str, float] = {}
        self._busy_until: dict[str, float] = {}  # by queue: not before then can it be empty
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, hints: Sequence[Hint]) -> None:
        """Publish soon. What cannot be published is dropped: the rescuer announces it again."""
        if hints:
            self._waiting.put(hints)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Publish what waits, then stop."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        closing = False
        while not closing:
            batch: list[Hint] = []
            item = self._next()
            while True:
                if item is None:
                    closing = True
                else:
                    batch.extend(item)
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
            try:
                self._publish(self._due(batch, everything=closing))
            except Exception:
                # A bug: the rescuer repeats these hints, and the next ones may go well.
                logger.exception("%d hints wait for the rescuer", len(batch))

    def _publish(self, due: Sequence[Hint]) -> None:
        if not due:
            return
        try:
            depths = self._publisher.publish(due)
        except BrokerUnavailable as error:
            logger.warning("%d hints wait for the rescuer: %s", len(due), error)
        else:
            at = self._clock()
            self._busy_until |= {name: at + depth / _MOST_POPPED_PER_S for name, depth in depths.items()}

    def _next(self) -> Sequence[Hint] | None:
        """What comes next; nothing when what is held must go first. None: the end."""
        if not self._held:
            return self._waiting.get()
        try:
            return self._waiting.get(timeout=max(0.0, min(self._held_until.values()) - self._clock()))
        except queue.Empty:
            return ()

    def _due(self, batch: Sequence[Hint], *, everything: bool) -> list[Hint]:
        """What is to be published now of these and of what is held; the rest is held."""
        at = self._clock()
        by_queue: dict[str, list[Hint]] = {name: list(held) for name, held in self._held.items()}
        for hint in batch:
            by_queue.setdefault(hint.queue, []).append(hint)
        self._held.clear()
        due: list[Hint] = []
        for name, hints in by_queue.items():
            until = self._held_until.pop(name, min(self._busy_until.get(name, at), at + _LONGEST_HOLD_S))
            rest = 0 if everything or until <= at else len(hints) % self._publisher.per_message.get(name, 1)
            due += hints[: len(hints) - rest]
            if rest:
                self._held[name] = hints[len(hints) - rest :]
                # Of a group that was held, only the latest hints are left.
                fresh = len(hints) > rest
                self._held_until[name] = min(self._busy_until[name], at + _LONGEST_HOLD_S) if fresh else until
        return due


def write_hints(queue_name: str, hints: Sequence[tuple[int, int]]) -> bytes:
    """A message as Celery and kombu read it from the broker's list, with no more in it than they need."""
    message_id = secrets.token_hex(8)
    body = orjson.dumps([[hints], {}, {}])
    message = {
        "body": base64.b64encode(body).decode("ascii"),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": TASK, "id": message_id},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue_name},
            "delivery_tag": message_id,
        },
    }
    return orjson.dumps(message)


def read_hints(raw: bytes) -> list[tuple[int, int]]:
    """The hints of one message as it lies in the broker's list. Raises BadMessage for anything else.

    Whoever can reach the broker can write to the list, so nothing of the message is
    believed: not its size, its encoding, its task, nor the types of its ids.
    """
    if len(raw) > _MAX_MESSAGE_BYTES:
        raise BadMessage(f"{len(raw)} bytes, more than {_MAX_MESSAGE_BYTES}")
    envelope = _mapping(_json(raw, "message"), "message")
    headers = _mapping(envelope.get("headers"), "headers")
    properties = _mapping(envelope.get("properties"), "properties")
    _expect("headers.task", headers.get("task"), TASK)
    _expect("headers.compression", headers.get("compression"), None)
    _expect("content-type", envelope.get("content-type"), "application/json")
    _expect("content-encoding", envelope.get("content-encoding"), "utf-8")
    _expect("properties.body_encoding", properties.get("body_encoding"), "base64")
    if not isinstance(properties.get("delivery_tag"), str):
        raise BadMessage("not a string", field="properties.delivery_tag")
    _mapping(properties.get("delivery_info"), "properties.delivery_info")
    body = envelope.get("body")
    if not isinstance(body, str):
        raise BadMessage("not a string", field="body")
    try:
        decoded = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise BadMessage("not base64", field="body") from None
    return hints_in(_json(decoded, "body"))


def hints_in(payload: Any) -> list[tuple[int, int]]:
    """The hints of a message's decoded body ``[args, kwargs, embed]``. Raises BadMessage."""
    if not isinstance(payload, list) or len(payload) != 3:
        raise BadMessage("not [args, kwargs, embed]", field="body")
    args = payload[0]
    if not isinstance(args, list) or len(args) != 1 or not isinstance(args[0], list):
        raise BadMessage("not one list of hints", field="body.args")
    if not 1 <= len(args[0]) <= _MAX_HINTS_IN_MESSAGE:
        raise BadMessage(f"{len(args[0])} hints", field="body.args")
    return [_hint(pair) for pair in args[0]]


def _hint(pair: Any) -> tuple[int, int]:
    if not isinstance(pair, list) or len(pair) != 2 or any(type(number) is not int for number in pair):
        raise BadMessage("not [stage run id, attempt]", field="body.args")
    stage_run_id, attempt = pair
    if not (0 < stage_run_id < 1 << 63 and 0 <= attempt < 1 << 31):
        raise BadMessage("a stage run id or an attempt out of range", field="body.args")
    return stage_run_id, attempt


def _json(data: bytes, field: str) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}", field=field) from None


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadMessage("not an object", field=field)
    return value


def _expect(field: str, value: Any, wanted: str | None) -> None:
    if value != wanted:
        raise BadMessage(f"{value!r:.60} instead of {wanted!r}", field=field)
