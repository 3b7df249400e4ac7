"""Hints as messages: written into a stage's queue, and read from it.

A message carries pairs ``(stage run id, attempt)`` and nothing else. It may be lost, late or doubled without harm,
because the row in SQL is the truth. So no message is acknowledged, retried for long or stored.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from omni_jobs.errors import BadMessage

if TYPE_CHECKING:
    from omni_jobs.broker.broker import Broker
    from omni_jobs.jobs import Hint

logger = logging.getLogger(__name__)

TASK = "omni_jobs.run_stage"
"""The name of the one Celery task. Its only argument is a list of ``[stage run id, attempt]``."""

POISON_SUFFIX = ".poison"
"""A message that cannot be read moves to the list ``<queue>.poison``."""

_MAX_MESSAGE_BYTES = 256 * 1024
_MAX_HINTS_IN_MESSAGE = 1024


class HintPublisher:
    """Publishes hints into the queues of their stages. Safe for threads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.per_message = broker.per_message

    def publish(self, hints: Iterable[Hint]) -> dict[str, int]:
        """Publish hints. Return how many messages each of their queues has then.

        A hint for a queue of no pipeline is left out and logged. Raises BrokerUnavailable: a caller that has committed
        logs it and goes on, because the rescuer republishes the hints.
        """
        by_queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for hint in hints:
            by_queue[hint.queue].append((hint.stage_run_id, hint.attempt))
        depths = {}
        for name, pairs in by_queue.items():
            if name not in self._broker.queues:
                logger.error("no queue %s: %d hints stay unpublished; is its pipeline gone?", name, len(pairs))
                continue
            size = self.per_message[name]
            messages = [write_hints(name, pairs[start : start + size]) for start in range(0, len(pairs), size)]
            depths[name] = self._broker.push(name, messages)
        return depths


def write_hints(queue_name: str, hints: Sequence[tuple[int, int]]) -> bytes:
    """Return a message as Celery and kombu read it from the broker's list, with only the fields that they need."""
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
    """Return the hints of a message from the broker's list. Raises BadMessage for anything else.

    Anybody who reaches the broker can write to the list. So all parts of the message are checked: its size, its
    encoding, its task and the types of its ids.
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
    """Return the hints of a message's decoded body ``[args, kwargs, embed]``. Raises BadMessage."""
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
