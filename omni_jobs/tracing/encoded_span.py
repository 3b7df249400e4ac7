"""``encoded_span``: a span with its steps in OTLP's protobuf, and ``encoded_request``, which many of them make.

Made of protobuf's objects an attempt costs 60 µs, and a job that does little takes 500. So what many spans have in
common is encoded once, by protobuf, and what differs is written here: ids, times, numbers. Protobuf merges the parts of
a message that stand one behind the other. The form: opentelemetry-proto 1.x, ``trace.proto``, in protobuf's encoding.
"""

import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from omni_jobs.logs.printable import printable
from omni_jobs.tracing.spans import EndedSpan, Value
from omni_jobs.tracing.traceparent import span_of, trace_of

__all__ = ["SpanSource", "encoded_request", "encoded_span"]

_KINDS: Final = {
    "server": Span.SPAN_KIND_SERVER,
    "consumer": Span.SPAN_KIND_CONSUMER,
    "internal": Span.SPAN_KIND_INTERNAL,
}
_NS = 1_000_000_000
_MOST_CHARS = 4096  # of a text in a span
_SHORT_TEXT = 64  # characters of one that is written here, if it is plain
_BEGINS: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_HAS_PARENT: Final = _BEGINS | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

# Tags of protobuf's fields, each before its content; of an id with its length, which is always the same.
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = b"\x0a", b"\x12", b"\x12"
_TRACE, _SPAN, _PARENT, _BEGAN, _ENDED = b"\x0a\x10", b"\x12\x08", b"\x22\x08", b"\x39", b"\x41"
_WHEN: Final = struct.Struct("<sQsQ")
_STEP: Final = struct.Struct("<20sQ11sQsQ")
_DOUBLE: Final = struct.Struct("<d")

_random = random.Random()  # noqa: S311 — not the process's, which a model may seed


class SpanSource(NamedTuple):
    """What all spans of a process have in common, encoded: a ``ResourceSpans`` and a ``ScopeSpans`` without spans."""

    resource: bytes
    scope: bytes


def encoded_request(source: SpanSource, spans: Iterable[bytes]) -> bytes:
    """Return an ``ExportTraceServiceRequest`` of the encoded spans of one source."""
    return _field(_RESOURCE_SPANS, source.resource + _field(_SCOPE_SPANS, b"".join([source.scope, *spans])))


def encoded_span(span: EndedSpan) -> bytes:
    """Return a span and its steps, as the ``ScopeSpans`` of which they are a part. Steps get new ids."""
    trace, own = bytes.fromhex(trace_of(span.traceparent)), bytes.fromhex(span_of(span.traceparent))
    at = int(span.ended * _NS)
    parts = [
        _named(span.name, span.kind, span.parent is not None),
        _TRACE + trace + _SPAN + own,
        _WHEN.pack(_BEGAN, int(span.began * _NS), _ENDED, at),
        _encoded_labels(span.labels),
    ]
    if span.parent is not None:
        parts.append(_PARENT + bytes.fromhex(span_of(span.parent)))
    for name, value in span.attributes.items():
        if isinstance(value, float):
            parts.append(_before_double(name) + _DOUBLE.pack(value))
        elif isinstance(value, str) and len(value) <= _SHORT_TEXT and value.isascii() and value.isprintable():
            parts.append(_before_text(name, len(value)) + value.encode())
        elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
            number = _varint(value)
            parts.append(_before_int(name, len(number)) + number)
        else:
            parts.append(_encoded_attributes(((name, value),)))
    if span.links:
        parts.append(_links(span.links))
    error = b"" if span.error is None else _error(span.error, at)
    return b"".join([_field(_SPANS, b"".join(parts) + error), *_steps(trace, own, span.steps, error)])


def _steps(trace: bytes, parent: bytes, steps: Sequence[tuple[str, float, float]], error: bytes) -> list[bytes]:
    """Return the encoded steps, of which the last one has the encoded error."""
    before, behind = _TRACE + trace + _SPAN, _PARENT + parent + _BEGAN
    new_id = _random.getrandbits
    found = [
        _before_step(name) + _STEP.pack(before, new_id(64), behind, int(began * _NS), _ENDED, int(ended * _NS))
        for name, began, ended in steps
    ]
    if error and found:
        name, _, _ = steps[-1]
        found[-1] = _field(_SPANS, _named(name, "internal", True) + found[-1][len(_before_step(name)) :] + error)
    return found


@lru_cache(256)
def _before_step(name: str) -> bytes:
    """Return what stands before what differs between the steps of a name: that is always as long."""
    named = _named(name, "internal", True)
    return _SPANS + _varint(len(named) + _STEP.size) + named


@lru_cache(256)
def _named(name: str, kind: str, has_parent: bool) -> bytes:
    flags = _HAS_PARENT if has_parent else _BEGINS
    return _bytes(Span(name=name, kind=_KINDS[kind], flags=flags))


def _encoded_attributes(pairs: Iterable[tuple[str, Value]]) -> bytes:
    return _bytes(Span(attributes=[_pair(name, value) for name, value in pairs]))


_encoded_labels = lru_cache(1024)(_encoded_attributes)


# What stands before the content of an attribute, which depends on the content's kind and length alone.


@lru_cache(256)
def _before_double(name: str) -> bytes:
    return _encoded_attributes([(name, 1.0)])[: -_DOUBLE.size]


@lru_cache(1024)
def _before_int(name: str, length: int) -> bytes:
    return _encoded_attributes([(name, 1 << 7 * (length - 1))])[:-length]


@lru_cache(1024)
def _before_text(name: str, length: int) -> bytes:
    return _encoded_attributes([(name, "x" * length)])[: -length or None]


def _links(names: Sequence[str]) -> bytes:
    ids = [(bytes.fromhex(trace_of(each)), bytes.fromhex(span_of(each))) for each in names]
    return _bytes(Span(links=[Span.Link(trace_id=trace, span_id=span, flags=_HAS_PARENT) for trace, span in ids]))


def _error(error: Mapping[str, str], at: int) -> bytes:
    code, message = error["code"], _sendable(error["message"])
    what = [_pair("exception.type", code), _pair("exception.message", message)]
    event = Span.Event(name="exception", time_unix_nano=at, attributes=what)
    status = Status(code=Status.STATUS_CODE_ERROR, message=message)
    return _bytes(Span(events=[event], status=status, attributes=[_pair("error.type", code)]))


def _pair(name: str, value: Value) -> KeyValue:
    return KeyValue(key=name, value=_any(value))


def _any(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=_sendable(value))
        case bool():
            return AnyValue(bool_value=value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return AnyValue(int_value=value)
        case int():  # more than protobuf takes
            return AnyValue(string_value=str(value))
        case float():
            return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=map(_any, value)))


def _sendable(text: str) -> str:
    """Return a bounded text that protobuf takes: what it refuses would cost all spans sent with it."""
    return printable(text[:_MOST_CHARS])


def _bytes(message: Span) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Return a number of 0 or more in protobuf's encoding: seven bits a byte, the lowest first."""
    if number < 128:
        return _ONE_BYTE[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_ONE_BYTE: Final = [bytes((each,)) for each in range(128)]
