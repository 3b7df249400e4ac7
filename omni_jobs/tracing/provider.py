"""``SentSpans``: spans by OpenTelemetry's SDK, sent by OTLP over HTTP in batches, by a thread of its own.

OpenTelemetry's own variables configure it: ``OTEL_EXPORTER_OTLP_ENDPOINT`` and others of the exporter,
``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``, ``OTEL_BSP_…``.
"""

import os
import sys
import threading
from collections.abc import Sequence

import orjson
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from omni_jobs.errors import ConfigError
from omni_jobs.tracing.encoded_span import SpanSource, encoded_request, encoded_span
from omni_jobs.tracing.spans import EndedSpan
from omni_jobs.tracing.traceparent import span_of, trace_of

_CLOSE_S = 5.0
_SCOPE = InstrumentationScope("omni_jobs")
_SAMPLED = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class SentSpans:
    """Takes spans that are over, on any thread, and sends them. What cannot be sent is dropped, and logged."""

    def __init__(self, process: str) -> None:
        """Start the thread that sends. Raises ConfigError for an exporter that is not here."""
        names = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": f"omni-jobs-{process}"}
        self._provider = TracerProvider(
            resource=Resource.create({**names, "service.namespace": "omni-jobs"}), shutdown_on_exit=False
        )
        self._source = _source_of(self._provider.resource)
        self._exporter = _exporter()
        self._is_shown = isinstance(self._exporter, ConsoleSpanExporter)
        self._processor = None if self._exporter is None else BatchSpanProcessor(self._exporter)
        if self._processor is not None:
            self._provider.add_span_processor(self._processor)

    def new(self, within: str | None) -> str:
        """Return the name of a new span in the trace of another one, or in a new trace that is recorded or not."""
        ids = self._provider.id_generator
        trace = f"{ids.generate_trace_id():032x}" if within is None else trace_of(within)
        decision = self._provider.sampler.should_sample(_context(within), int(trace, 16), "submit").decision
        return f"00-{trace}-{ids.generate_span_id():016x}-{'00' if decision is Decision.DROP else '01'}"

    def send(self, span: EndedSpan) -> None:
        """Hand a span to the thread that sends. Returns at once."""
        if self._processor is not None and int(span.traceparent[53:55], 16) & TraceFlags.SAMPLED:
            shown = self._is_shown
            self._processor.on_end(_ShownSpan(span) if shown else _EncodedSpan(encoded_span(span), self._source))

    def close(self) -> None:
        """Send what waits, for some seconds at most: a collector may hang, and OpenTelemetry would wait longer."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive() and self._exporter is not None:
            self._exporter.shutdown()  # else its thread would try again and again


class _EncodedSpan(ReadableSpan):
    """A span and its steps. OpenTelemetry passes it on, and looks at its context alone.

    It is encoded already, because the objects of a span that can be read cost ten times as much.
    """

    def __init__(self, encoded: bytes, source: SpanSource) -> None:
        self.encoded = encoded
        self.source = source

    @property
    def context(self) -> SpanContext:
        return _SAMPLED


class _ShownSpan(ReadableSpan):
    """A span and its steps for the console, as JSON on a line."""

    def __init__(self, span: EndedSpan) -> None:
        self._span = span

    @property
    def context(self) -> SpanContext:
        return _SAMPLED

    def to_json(self, indent: int | None = None) -> str:
        return orjson.dumps(self._span._asdict(), default=str).decode()


class _EncodedRequest:
    """The message that the exporter sends."""

    def __init__(self, spans: Sequence[_EncodedSpan]) -> None:
        self._spans = spans

    def SerializePartialToString(self) -> bytes:
        return encoded_request(self._spans[0].source, [span.encoded for span in self._spans])


def _encode_spans(spans: Sequence[ReadableSpan]) -> object:
    """Return the message of spans of ours, and of those that a library sends by the same exporter."""
    ours = [span for span in spans if isinstance(span, _EncodedSpan)]
    return _EncodedRequest(ours) if ours else encode_spans(spans)


vars(trace_exporter)["encode_spans"] = _encode_spans  # because the exporter takes bytes in no other way


def _source_of(resource: Resource) -> SpanSource:
    """Return what stands before all spans of this process, as OpenTelemetry encodes it."""
    [of_resource] = encode_spans(
        [ReadableSpan("", _SAMPLED, resource=resource, instrumentation_scope=_SCOPE)]
    ).resource_spans
    [of_scope] = of_resource.scope_spans
    of_resource.ClearField("scope_spans")
    of_scope.ClearField("spans")
    return SpanSource(of_resource.SerializeToString(), of_scope.SerializeToString())


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
            return ConsoleSpanExporter(out=sys.stdout)
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
