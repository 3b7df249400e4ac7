import base64
import json
from typing import Any

import pytest

from omni_jobs.broker.hints import TASK, read_hints
from omni_jobs.errors import BadMessage


def message(hints: Any = ((1, 0), (2, 3)), **changes: Any) -> dict[str, Any]:
    body = base64.b64encode(json.dumps([[hints], {}, {"callbacks": None}]).encode()).decode()
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": TASK, "id": "x", "lang": "py"},
        "properties": {"delivery_tag": "t", "delivery_info": {}, "body_encoding": "base64"},
        **changes,
    }


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_reads_the_hints_of_a_good_message() -> None:
    assert read_hints(raw(message())) == [(1, 0), (2, 3)]


def test_headers_that_mean_something_to_celery_mean_nothing_here() -> None:
    headers = {"task": TASK, "timelimit": "soon", "eta": "never", "expires": [], "retries": -1}
    assert read_hints(raw(message(headers=headers))) == [(1, 0), (2, 3)]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"\xff\xfe", "message"),
        (b"", "message"),
        (b"not json", "message"),
        (b"[" * 100_000, "message"),
        (b"1" * 10_000, "message"),
        (b"[]", "message"),
        (raw(message(headers=None)), "headers"),
        (raw(message(headers={"task": "os.system"})), "headers.task"),
        (raw(message(headers={"task": TASK, "compression": "zlib"})), "headers.compression"),
        (raw(message(**{"content-type": "application/x-python-serialize"})), "content-type"),
        (raw(message(**{"content-encoding": "binary"})), "content-encoding"),
        (raw(message(properties={})), "properties.body_encoding"),
        (raw(message(properties={"body_encoding": "base64"})), "properties.delivery_tag"),
        (raw(message(properties={"body_encoding": "base64", "delivery_tag": "t"})), "properties.delivery_info"),
        (raw(message(body="%%%")), "body"),
        (raw(message(body=7)), "body"),
        (raw(message(body="")), "body"),
        (raw(message(hints=[])), "body.args"),
        (raw(message(hints=[[1]])), "body.args"),
        (raw(message(hints=[[1, True]])), "body.args"),
        (raw(message(hints=[[1, 1.0]])), "body.args"),
        (raw(message(hints=[["1", 0]])), "body.args"),
        (raw(message(hints=[[0, 0]])), "body.args"),
        (raw(message(hints=[[1 << 63, 0]])), "body.args"),
        (raw(message(hints=[[1, -1]])), "body.args"),
        (raw(message(hints=[[1, 0]] * 1025)), "body.args"),
        (raw(message(hints="1,0")), "body.args"),
    ],
)
def test_refuses_everything_else_and_names_the_field(bad: bytes, field: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read_hints(bad)
    assert caught.value.field == field


def test_refuses_a_huge_message_unread() -> None:
    with pytest.raises(BadMessage, match="more than"):
        read_hints(b" " * 300_000)
