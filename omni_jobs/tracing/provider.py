"""``SentSpans``: spans by OpenTelemetry's SDK, sent by OTLP over HTTP in batches, by a thread of its own.

The only file that imports OpenTelemetry. Its own variables configure it: ``OTEL_EXPORTER_OTLP_ENDPOINT`` and others of
the exporter, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``, ``OTEL_BSP_…``.
"""

import os
import secrets
import threading
from collections.abc import Sequence
from typing import overload

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from omni_jobs.errors import ConfigError
from omni_jobs.logs.printable import printable
from omni_jobs.tracing.spans import EndedSpan
from omni_jobs.tracing.traceparent import span_of, trace_of

_KINDS = {"server": SpanKind.SERVER, "consumer": SpanKind.CONSUMER, "internal": SpanKind.INTERNAL}
_NS = 1_000_000_000
_CLOSE_S = 5.0
_MOST_CHARS = 4096  # of a text in a span
_SCOPE = InstrumentationScope("omni_jobs")


class SentSpans:
    """Takes spans that are over, on any thread, and sends them. What cannot be sent is dropped, and logged."""

    def __init__(self, process: str) -> None:
        """Start the thread that sends. Raises ConfigError for an exporter that is not here."""
        names = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": f"omni-jobs-{process}"}
        self._provider = TracerProvider(
            resource=Resource.create({**names, "service.namespace": "omni-jobs"}), shutdown_on_exit=False
        )
        self._processor = None if (exporter := _exporter()) is None else BatchSpanProcessor(exporter)
        if self._processor is not None:
            self._provider.add_span_processor(self._processor)

    def new(self, within: str | None) -> str:
        """Return the name of a new span in the trace of another one, or in a new trace that is recorded or not."""
        trace = secrets.token_hex(16) if within is None else trace_of(within)
        decision = self._provider.sampler.should_sample(_context(within), int(trace, 16), "submit").decision
        return f"00-{trace}-{secrets.token_hex(8)}-{'00' if decision is Decision.DROP else '01'}"

    def send(self, span: EndedSpan) -> None:
        """Hand a span to the thread that sends. Returns at once."""
        if not int(span.traceparent[53:55], 16) & TraceFlags.SAMPLED:
            return
        if self._processor is None:
            return
        ended = int(span.ended * _NS)
        attributes = {name: _sendable(value) for name, value in span.attributes.items()}
        events, status = [], Status(StatusCode.UNSET)
        if span.error is not None:
            code, message = span.error["code"], _sendable(span.error["message"])
            what = {"exception.type": code, "exception.message": message}
            events, status = [Event("exception", what, ended)], Status(StatusCode.ERROR, message)
            attributes["error.type"] = code
        # Made whole, because a tracer's span is for code that runs within it, and costs ten times as much.
        made = ReadableSpan(
            span.name,
            _span_context(span.traceparent),
            None if span.parent is None else _span_context(span.parent),
            self._provider.resource,
            attributes,
            events,
            [Link(_span_context(each)) for each in span.links],
            _KINDS[span.kind],
            status=status,
            start_time=int(span.began * _NS),
            end_time=ended,
            instrumentation_scope=_SCOPE,
        )
        self._processor.on_end(made)

    def close(self) -> None:
        """Send what waits, for some seconds at most: a collector may hang, and OpenTelemetry would wait longer."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


@overload
def _sendable(value: str) -> str: ...
@overload
def _sendable(value: str | float | Sequence[str]) -> str | float | Sequence[str]: ...
def _sendable(value: str | float | Sequence[str]) -> str | float | Sequence[str]:
    """Return a bounded attribute that protobuf takes: what it refuses would cost all spans sent with it."""
    if isinstance(value, str):
        return printable(value[:_MOST_CHARS])
    return value if isinstance(value, int | float) else [printable(each[:_MOST_CHARS]) for each in value]


def _exporter() -> SpanExporter | None:
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    match name:
        case "otlp" if protocol not in (None, "", "http/protobuf"):
            raise ConfigError(
                f"spans go by http/protobuf alone, not by {protocol!r:.40}", field="OTEL_EXPORTER_OTLP_PROTOCOL"
            )
        case "otlp":
            return OTLPSpanExporter()
        case "console":
            return ConsoleSpanExporter()
        case "none":
            return None
    raise ConfigError(f"must be otlp, console or none, not {name!r:.40}", field="OTEL_TRACES_EXPORTER")


def _context(parent: str | None) -> Context:
    """Return the context of a span with this parent. Without one it is empty, and the span begins its trace."""
    empty = Context()
    return empty if parent is None else set_span_in_context(NonRecordingSpan(_span_context(parent)), empty)


def _span_context(traceparent: str) -> SpanContext:
    trace, span, flags = (int(part, 16) for part in (trace_of(traceparent), span_of(traceparent), traceparent[53:55]))
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
