"""The port for metrics alone: what it answers, and what it does while another process has the port."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from omni_jobs.http import metrics_server
from omni_jobs.http.metrics_server import MetricsServer
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from omni_jobs.settings import Settings


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def until_served(url: str) -> httpx2.Response:
    for _ in range(400):
        try:
            return httpx2.get(url, trust_env=False)
        except httpx2.TransportError:
            threading.Event().wait(0.05)
    raise AssertionError("nobody serves it")


def test_it_waits_for_a_port_that_is_taken_and_serves_metrics_alone(
    held: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_server, "_TRY_EVERY_S", 0.05)
    port = held.getsockname()[1]
    logged = threading.Event()
    monkeypatch.setattr(metrics_server.logger, "error", lambda *_: logged.set())
    metrics = RescuerMetrics()
    server = MetricsServer(metrics, Settings(data_dir=tmp_path, metrics_port=port))
    server.start()
    try:
        assert logged.wait(20)
        held.close()
        url = f"http://127.0.0.1:{port}"
        metrics.freed.inc(3)
        answer = until_served(f"{url}/metrics")
        assert "omni_jobs_freed_stage_runs_total 3.0" in answer.text
        assert httpx2.get(f"{url}/v1/jobs", trust_env=False).status_code == 404
        assert httpx2.post(f"{url}/metrics", trust_env=False).status_code == 405
        assert httpx2.get(f"{url}/metrics", headers={"X": "x" * 70_000}, trust_env=False).status_code == 431
    finally:
        server.close()
    assert not server._thread.is_alive()
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{url}/metrics", trust_env=False)


def test_it_ends_while_the_port_is_taken(held: socket.socket, tmp_path: Path) -> None:
    server = MetricsServer(RescuerMetrics(), Settings(data_dir=tmp_path, metrics_port=held.getsockname()[1]))
    server.start()
    server.close()
    assert not server._thread.is_alive()


def test_without_a_port_it_does_nothing(tmp_path: Path) -> None:
    server = MetricsServer(RescuerMetrics(), Settings(data_dir=tmp_path))
    server.start()
    server.close()
    assert not server._thread.is_alive()
