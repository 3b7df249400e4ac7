"""A server's JSON costs no more than its bytes, whatever it holds, and only what is asked for has to be right."""

import json
import tracemalloc
from typing import Any

import pytest

from omni_jobs.errors import ModelError
from workers.runners.remote.document import MOST_TEXT, Document, read_document
from workers.runners.remote.documents import EventReader
from workers.runners.remote.server_error import ServerError

MIB = 1 << 20
FILL = {
    "ones": b"1,",
    "lists": b"[],",
    "objects": b"{},",
    "objects in objects": b'{"a":{}},',
    "strings": b'"",',
    "escapes": rb'"\u4f60",',
    "numbers": b"1e1,",
}


def filled(begin: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return begin + piece * (size // len(piece)) + end


@pytest.mark.parametrize("begin", [b'{"data":[', b'{"choices":[', b'{"data":[{"b64_json":"AAAA"}],"unknown":['])
@pytest.mark.parametrize("piece", FILL.values(), ids=FILL)
async def test_many_values_are_refused_before_they_are_made(begin: bytes, piece: bytes) -> None:
    body = filled(begin, piece, b"0]}", 8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="more than 50000 values"):
            await read_document(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MIB


@pytest.mark.parametrize("piece", [b" ", b"9"])
async def test_many_bytes_outside_of_strings_are_refused(piece: bytes) -> None:
    with pytest.raises(ModelError, match="8388608 bytes outside its strings"):
        await read_document(filled(b'{"x":', piece, b"1}", 9 * MIB))


async def test_text_that_is_not_plain_is_bounded() -> None:
    with pytest.raises(ModelError, match="more text than is taken"):
        await read_document(filled(b'{"x":"', rb"\u4f60", b'"}', 9 * MIB))


async def test_one_text_is_bounded() -> None:
    document = await read_document(b'{"a": "%b", "b": "%b"}' % (b"x" * MOST_TEXT, b"y" * (MOST_TEXT + 1)))
    assert document.text("a") == "x" * MOST_TEXT
    with pytest.raises(ModelError, match="b: more text"):
        document.text("b")


@pytest.mark.parametrize("size", [3, 100_000])
async def test_media_are_read_from_base64_and_data_urls(size: int) -> None:
    digits = "QUJD" * size
    document = await read_document(
        json.dumps({"a": digits, "b": f"data:x/y;base64,{digits}", "c": "??", "d": 1}).encode()
    )
    assert await document.medium("a") == await document.medium("b") == b"ABC" * size
    assert await document.medium("e") is None
    for name in ("c", "d"):
        with pytest.raises(ModelError, match=f"{name}: no"):
            await document.medium(name)


def test_what_is_null_or_missing_is_none_and_what_is_wrong_is_named() -> None:
    document = Document({"a": [{"b": None}, 1], "c": {"d": 2}})
    for path in [("a", 0, "b"), ("a", 0, "b", "e", 3), ("a", 9), ("x", 0)]:
        assert document.at(*path) is None
        assert document.text(*path) is None
    found: Any
    for found, message in [(("a", "b"), "a: no object"), (("c", 0), "c: no list"), (("a", 1, "b"), "a.1: no object")]:
        with pytest.raises(ModelError, match=message):
            document.at(*found)
        assert document.peek(*found) is None
    with pytest.raises(ModelError, match=r"c\.d: no string"):
        document.text("c", "d")


# Events.


def events_of(data: bytes, step: int) -> list[tuple[bytes, bytes]]:
    reader = EventReader()
    found = [event for at in range(0, len(data), step) for event in reader.feed(data[at : at + step])]
    last = reader.last()
    return found if last is None else [*found, last]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_events_are_the_same_in_any_pieces(step: int, end: bytes) -> None:
    lines = [
        b"data: a",
        b"data:b",
        b"",
        b"event: X ",
        b"",
        b": no",
        b"data",
        b"",
        b"event: y",
        b"id: 1",
        b"data:  c",
        b"",
    ]
    assert events_of(end.join([*lines, b"data: d"]), step) == [(b"", b"a\nb"), (b"", b""), (b"y", b" c"), (b"", b"d")]


def test_an_event_ends_with_its_line_and_not_with_the_next() -> None:
    assert list(EventReader().feed(b"data: a\r\r")) == [(b"", b"a")]


@pytest.mark.parametrize("piece", [b"x" * 65_536, b"\ndata:" * 10_000])
def test_an_event_is_bounded(piece: bytes) -> None:
    reader = EventReader()
    list(reader.feed(b"data: "))
    with pytest.raises(ModelError, match="an event has more than 8388608 bytes"):
        [event for _ in range(200) for event in reader.feed(piece)]


# Errors.


@pytest.mark.parametrize(
    ("more", "pause_s"),
    [
        ({"retry_after": 7}, 7),
        ({"retry_after": "7.5"}, 7.5),
        ({"retry_after_ms": 500}, 0.5),
        ({"metadata": {"retry_after": 7}}, 7),
        ({"details": [1, {"@type": "x"}, {"retryDelay": "7.25s"}]}, 7.25),
        ({"retry_after": "soon"}, None),
        ({"retry_after": -7}, 0),
        ({"retry_after": "9" * 5000}, None),
        ({"retry_after": None, "details": {"retryDelay": "7s"}}, None),
    ],
)
def test_an_error_says_when_to_come_again(more: dict[str, Any], pause_s: float | None) -> None:
    assert ServerError.parse({"error": {"message": "m", **more}}).pause_s == pause_s
