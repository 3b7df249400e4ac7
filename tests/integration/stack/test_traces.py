"""Traces: a real OTLP/HTTP receiver gets one trace of a job from all processes of a stack."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STEPS = ["queue", "load", "run", "store", "record"]
PROMPT = "A prompt that no span may quote, from the harbour of Kiel."


class Receiver:
    """What came: spans, each with the name of the service that sent it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[tuple[str, Span]] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                self.spans += [(names["service.name"], span) for scope in resource.scope_spans for span in scope.spans]

    def of(self, trace: str) -> list[tuple[str, Span]]:
        return [(service, span) for service, span in self.spans if span.trace_id.hex() == trace]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            received.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield received
        server.shutdown()
        thread.join()


def attributes_of(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in span.attributes}


@pytest.mark.timeout(240)
def test_a_job_has_one_trace_over_all_processes(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker is lost within it: its second attempt is linked to the first."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    settings = Settings(data_dir=tmp_path / "data", tracing="on", lease_s=2, heartbeat_s=0.2)
    with (
        EmbeddedStack(settings, pipelines=["echo"]) as stack,
        httpx2.Client(base_url=stack.url, trust_env=False, timeout=60) as http,
    ):
        body = {
            "model": "echo",
            "messages": [{"role": "user", "content": PROMPT}],
            "modalities": ["text"],
            "seed": 7,
            "stages": {"first": {"delay_s": 3}},
        }
        job = http.post("/v1/jobs", json=body, headers={"traceparent": f"00-{TRACE}-{CLIENT}-01"}).json()["id"]
        while http.get(f"/v1/jobs/{job}").json()["stages"][0]["status"] != "running":
            pass
        worker = next(child for child in stack.children() if child.name == "worker echo.first")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        while http.get(f"/v1/jobs/{job}", params={"wait": "20"}).json()["status"] != "completed":
            pass
    spans = receiver.of(TRACE)  # all, because a process sends what waits as it stops
    by_name: dict[str, list[tuple[str, Span]]] = {}
    for service, span in spans:
        by_name.setdefault(span.name, []).append((service, span))
    [(service, submit)] = by_name["submit echo"]
    assert (service, submit.parent_span_id.hex()) == ("omni-jobs-api", CLIENT)
    attempts = sorted(by_name["stage run first"], key=lambda each: attributes_of(each[1])["omni_jobs.attempt"])
    assert [attributes_of(span)["omni_jobs.result"] for _, span in attempts] == ["lost", "completed"]
    (_, lost), (service, second) = attempts
    assert service == "omni-jobs-worker"
    assert lost.status.code == Status.STATUS_CODE_ERROR
    assert [event.name for event in lost.events] == ["exception"]
    assert [link.span_id for link in second.links] == [lost.span_id]
    assert {span.parent_span_id for _, span in (*attempts, *by_name["stage run second"])} == {submit.span_id}
    for _, attempt in (attempts[1], *by_name["stage run second"]):
        steps = [span for _, span in spans if span.parent_span_id == attempt.span_id]
        names = [step.name for step in sorted(steps, key=lambda step: step.start_time_unix_nano)]
        assert names == [name for name in STEPS if name in names]
        assert all(attributes_of(attempt)[f"omni_jobs.{name}_s"] >= 0 for name in STEPS)
        assert attempt.start_time_unix_nano <= attempt.end_time_unix_nano
    assert [span.parent_span_id for _, span in by_name["run"]][:1] == [second.span_id]
    known = attributes_of(second)
    assert known["omni_jobs.run_s"] > 1
    assert (known["omni_jobs.job.id"], known["gen_ai.request.model"], known["gen_ai.request.seed"]) == (job, "echo", 7)
    assert not any("harbour" in str(span) for _, span in spans)


def test_off_no_file_of_ours_imports_opentelemetry() -> None:
    """Its exporter is not there, either. redis-py imports the API by itself where it is installed."""
    code = (
        "import sys; from omni_jobs.settings import Settings; from omni_jobs.api.services import Services;"
        "import workers.consumer.stage_host, omni_jobs.maintenance.rescuer;"
        "from omni_jobs.tracing.spans import open_spans; assert open_spans(Settings(), 'api') is None;"
        "unwanted = ('opentelemetry.exporter', 'omni_jobs.tracing.provider');"
        "sys.exit(any(name.startswith(unwanted) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
