"""``SentSpans``: spans by OpenTelemetry's SDK, sent by OTLP over HTTP in batches, by a thread of its own.

The only file that imports OpenTelemetry. Its own variables configure it: ``OTEL_EXPORTER_OTLP_ENDPOINT`` and others of
the exporter, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``, ``OTEL_BSP_…``.
"""

import os
import secrets
import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
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
_MOST_CHARS = 4096  # of a text in a span, unless OpenTelemetry's own variable says otherwise
_LENGTH_LIMIT = "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"


class _GivenIds(RandomIdGenerator):
    """Gives the next span the ids that it has already, because they are known before the span is over."""

    def __init__(self) -> None:
        self.traceparent = ""

    def generate_span_id(self) -> int:
        return int(span_of(self.traceparent), 16)

    def generate_trace_id(self) -> int:
        return int(trace_of(self.traceparent), 16)


class SentSpans:
    """Takes spans that are over, on any thread, and sends them. What cannot be sent is dropped, and logged."""

    def __init__(self, process: str) -> None:
        """Start the thread that sends. Raises ConfigError for an exporter that is not here."""
        names = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": f"omni-jobs-{process}"}
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=Resource.create({**names, "service.namespace": "omni-jobs"}),
            id_generator=self._ids,
            span_limits=SpanLimits(max_attribute_length=None if os.environ.get(_LENGTH_LIMIT) else _MOST_CHARS),
            shutdown_on_exit=False,
        )
        if (exporter := _exporter()) is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("omni_jobs")
        self._lock = threading.Lock()

    def new(self, within: str | None) -> str:
        """Return the name of a new span in the trace of another one, or in a new trace that is recorded or not."""
        trace = secrets.token_hex(16) if within is None else trace_of(within)
        decision = self._provider.sampler.should_sample(_context(within), int(trace, 16), "submit").decision
        return f"00-{trace}-{secrets.token_hex(8)}-{'00' if decision is Decision.DROP else '01'}"

    def send(self, span: EndedSpan) -> None:
        """Hand a span to the thread that sends. Returns at once."""
        if not int(span.traceparent[53:55], 16) & TraceFlags.SAMPLED:
            return
        attributes = {name: _sendable(value) for name, value in span.attributes.items()}
        with self._lock:  # the ids are those of one span
            self._ids.traceparent = span.traceparent
            made = self._tracer.start_span(
                span.name,
                _context(span.parent),
                _KINDS[span.kind],
                attributes=attributes,
                links=[Link(_span_context(each)) for each in span.links],
                start_time=int(span.began * _NS),
            )
        if span.error is not None:
            message = printable(span.error["message"][:_MOST_CHARS])
            what = {"exception.type": span.error["code"], "exception.message": message}
            made.add_event("exception", what, int(span.ended * _NS))
            made.set_attribute("error.type", span.error["code"])
            made.set_status(Status(StatusCode.ERROR, message))
        made.end(int(span.ended * _NS))

    def close(self) -> None:
        """Send what waits, for some seconds at most: a collector may hang, and OpenTelemetry would wait longer."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def _sendable(value: str | float | Sequence[str]) -> str | float | Sequence[str]:
    """Return an attribute as protobuf takes it: what it refuses would cost all spans that are sent together."""
    if isinstance(value, str):
        return printable(value)
    return value if isinstance(value, int | float) else [printable(each) for each in value]


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
