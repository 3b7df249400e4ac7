"""Spans: their names, and the table of their attributes in the docs."""

import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from omni_jobs.tracing import attributes
from omni_jobs.tracing.encoded_span import encoded_span
from omni_jobs.tracing.spans import EndedSpan, Value, attempt_span, open_spans
from omni_jobs.tracing.traceparent import span_of, trace_of

JOB = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-b9c7c989f97918e1-01"
PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


def test_the_docs_have_each_attribute() -> None:
    given = {value for name, value in vars(attributes).items() if name.isupper() and isinstance(value, str)}
    given |= {*attributes.PARAMETERS.values(), *attributes.MADE.values(), *attributes.STEPS.values()}
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| Attribute | Of |")
    assert set(re.findall(r"`((?:gen_ai|omni_jobs)\.[a-z_.]+)`", table)) == given


def context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True)


TEXTS = ["", "a", "x" * 64, "x" * 65, "é", "a\nb", "x" * 4096]
NUMBERS = [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**62, 2**63 - 1, -1, -(2**63), True, 0.0, -1.5, 1e300]


@pytest.mark.parametrize("error", [None, {"code": "model_error", "message": "it fails"}])
def test_a_span_and_its_steps_are_encoded_as_opentelemetry_would(error: dict[str, str] | None) -> None:
    """Whatever its texts and numbers are: short ones, long ones and others are written in ways of their own."""
    values: list[Value] = [*TEXTS, *NUMBERS, ("stop", "é")]
    known = {f"a{number}": value for number, value in enumerate(values)}
    labels: dict[str, Value] = {attributes.STAGE: "first", attributes.ATTEMPT: 1}
    steps = [("queue", 1.5, 1.75), ("load", 1.75, 2.25)]
    span = EndedSpan(
        "stage run a", JOB, OTHER, 1.5, 2.25, "consumer", known, tuple(labels.items()), [OTHER], steps, error
    )
    found = ScopeSpans.FromString(encoded_span(span)).spans
    own, other = context(trace_of(JOB), span_of(JOB)), context(trace_of(OTHER), span_of(OTHER))
    ended: dict[str, Any] = {}
    if error is not None:
        what = {"exception.type": error["code"], "exception.message": error["message"]}
        status = Status(StatusCode.ERROR, error["message"])
        ended = {"events": [Event("exception", what, 2_250_000_000)], "status": status}
    of_error = {} if error is None else {"error.type": error["code"]}
    expected = [
        ReadableSpan(
            span.name,
            own,
            other,
            attributes={**labels, **known, **of_error},
            links=[Link(other)],
            kind=SpanKind.CONSUMER,
            start_time=1_500_000_000,
            end_time=2_250_000_000,
            **ended,
        )
    ]
    for step, (name, began, at) in zip(found[1:], steps, strict=True):
        is_last = name == "load"
        expected.append(
            ReadableSpan(
                name,
                context(step.trace_id.hex(), step.span_id.hex()),
                own,
                attributes=of_error if is_last else {},
                start_time=int(began * 1e9),
                end_time=int(at * 1e9),
                **(ended if is_last else {}),
            )
        )
    theirs = encode_spans(expected).resource_spans[0].scope_spans[0].spans
    for each in theirs:
        if not each.status.ListFields():  # theirs have an empty one, which means what none means
            each.ClearField("status")
    assert list(found) == list(theirs)
    assert len({each.span_id for each in found}) == 3


def test_the_console_shows_a_span_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    spans = open_spans(Settings(tracing="on"), "api")
    assert spans is not None
    spans.send(EndedSpan("stage run a", JOB, OTHER, 1.0, 2.0, steps=[("queue", 1.0, 1.5)]))
    spans.close()
    shown = json.loads(capsys.readouterr().out)
    assert (shown["traceparent"], shown["parent"], shown["steps"]) == (JOB, OTHER, [["queue", 1.0, 1.5]])


def test_an_attempts_span_is_the_same_to_every_process() -> None:
    spans = [attempt_span(JOB, run, attempt) for run in (1, 2) for attempt in (1, 2)]
    assert len({span_of(span) for span in spans}) == 4
    assert {trace_of(span) for span in spans} == {trace_of(JOB)}
    assert attempt_span(JOB, 1, 1) == spans[0]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_EXPORTER", "jaeger"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_an_exporter_that_is_not_here_is_refused_by_name(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        open_spans(Settings(tracing="on"), "api")
    assert caught.value.field == variable
    assert value in caught.value.message


def test_a_sampler_decides_for_the_whole_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    spans = open_spans(Settings(tracing="on"), "api")
    assert spans is not None
    try:
        assert spans.new(None).endswith("-00")
        assert spans.new(JOB).endswith("-01")
        assert trace_of(spans.new(JOB)) == trace_of(JOB)
    finally:
        spans.close()


class Collector:
    """A listener that takes connections and answers none until it is closed: it hangs."""

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.close()


@pytest.mark.timeout(60)
def test_a_collector_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who hands a span over, though the queue is full, nor who closes, though a request has begun."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    with Collector() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        spans = open_spans(Settings(tracing="on"), "api")
        assert spans is not None
        for _ in range(5000):
            spans.send(EndedSpan("submit echo", spans.new(None), None, 1.0, 2.0))
        spans.close()
    for thread in threading.enumerate():
        if "Otel" in thread.name:
            thread.join(20)
            assert not thread.is_alive(), "it tries again"


def test_a_span_is_of_bounded_size_and_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a remote server said: what protobuf refuses would cost the other spans of its batch."""
    sent: list[bytes] = []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    received = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            received.set()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        spans = open_spans(Settings(tracing="on"), "api")
        assert spans is not None
        known = {attributes.FINISH_REASONS: ["\ud800" + "y" * 1_000_000], attributes.STAGE: "x" * 1_000_000}
        error = {"code": "model_error", "message": "\ud800" + "z" * 1_000_000}
        spans.send(EndedSpan("stage run a", JOB, None, 1.0, 2.0, attributes=known, error=error))
        spans.close()
        server.shutdown()
        thread.join()
    assert received.is_set()
    [span] = ExportTraceServiceRequest.FromString(sent[0]).resource_spans[0].scope_spans[0].spans
    assert (span.name, span.status.message[:2]) == ("stage run a", "\ufffdz")
    assert span.ByteSize() < 5 * 4096
