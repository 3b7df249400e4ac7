"""Hints as messages: written into a stage's queue, and read from it.

A message carries pairs ``(stage run id, attempt)`` and nothing else. It may be lost, late or doubled without harm,
because the row in SQL is the truth. So no message is acknowledged, and sending one is tried twice at most.
"""

import base64
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from omni_jobs.errors import BadMessage

T = TypeVar("T")

TASK = "omni_jobs.run_stage"
"""The name of the one Celery task. Its only argument is a list of ``[stage run id, attempt]``."""

POISON_SUFFIX = ".poison"
"""A message that cannot be read moves to the list ``<queue>.poison``."""

_MAX_MESSAGE_BYTES = 256 * 1024
_MAX_HINTS_IN_MESSAGE = 1024


class _Headers(BaseModel, strict=True):
    task: Literal["omni_jobs.run_stage"]
    compression: None = None


class _Properties(BaseModel, strict=True):
    body_encoding: Literal["base64"]
    delivery_tag: str
    delivery_info: dict[str, Any]


class _Message(BaseModel, strict=True):
    headers: _Headers
    properties: _Properties
    content_type: Literal["application/json"] = Field(alias="content-type")
    content_encoding: Literal["utf-8"] = Field(alias="content-encoding")
    body: str


_Id = Annotated[int, Field(strict=True, gt=0, lt=1 << 63)]
_Attempt = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
_Hints = Annotated[list[tuple[_Id, _Attempt]], Field(min_length=1, max_length=_MAX_HINTS_IN_MESSAGE)]
_MESSAGE = TypeAdapter(_Message)
_BODY: TypeAdapter[tuple[tuple[_Hints], Any, Any]] = TypeAdapter(tuple[tuple[_Hints], Any, Any])  # args, kwargs, embed


def write_hints(queue_name: str, hints: Sequence[tuple[int, int]]) -> bytes:
    """Return hints ``(stage run id, attempt)`` as one message: JSON with only the fields that Celery and kombu need."""
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
    """Return the hints ``(stage run id, attempt)`` of a message. Raises BadMessage for anything else.

    Anybody who reaches the broker can write to a queue. So all parts of the message are checked: its size, its
    encoding, its task and the types of its ids.
    """
    if len(raw) > _MAX_MESSAGE_BYTES:
        raise BadMessage(f"{len(raw)} bytes, more than {_MAX_MESSAGE_BYTES}")
    message = _checked(_MESSAGE, raw, "message")
    try:
        body = base64.b64decode(message.body, validate=True)
    except ValueError:
        raise BadMessage("not base64", field="body") from None
    (hints,), _, _ = _checked(_BODY, body, "body")
    return hints


def _checked(form: TypeAdapter[T], data: bytes, name: str) -> T:
    """Return the JSON ``data`` in this form. Raises BadMessage, which names a field or else ``name``."""
    try:
        return form.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [str(part) for part in first["loc"]]
        if name == "body" and path:
            path = ["body", "args"]
        message = f"{first['msg']}, not {first['input']!r:.60}"
        raise BadMessage(message, field=".".join(path) or name) from None
