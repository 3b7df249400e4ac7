"""Both clients against a real HTTP server that answers from a script."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import xxhash

from omni_jobs import errors
from omni_jobs.client import Client, repeats, user_message
from omni_jobs.client.connection import request_options
from omni_jobs.client.steps import HttpRequest
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.both_clients import KINDS, Kind, of_kind

JOB: dict[str, Any] = {
    "id": "job-1",
    "object": "job",
    "pipeline": "echo",
    "pipeline_version": "1",
    "status": "queued",
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
    "modalities": ["text"],
    "stages": [],
    "result": None,
    "artifacts": [],
    "error": None,
    "metadata": {},
    "seed": 0,
    "expires_at": None,
    "retries": 0,
    "tenant": "default",
}
SOUND = b"RIFF" + bytes(100_000)
ARTIFACT = {
    "name": "audio.wav",
    "media_type": "audio/wav",
    "bytes": len(SOUND),
    "digest": f"xxh3:{xxhash.xxh3_128_hexdigest(SOUND)}",
    "url": "/v1/jobs/job-1/artifacts/audio.wav",
}


@dataclass
class Server:
    """Answers each request with the next of ``answers``: (status, JSON or bytes); the last again and again."""

    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # of every answer
    answers: list[tuple[int, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(repeats, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(repeats, "WAIT_PAUSES_S", (0.01,) * 8)
    script = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.seen.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
            status, content = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    script.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield script
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(params=KINDS)
def which(request: pytest.FixtureRequest) -> Kind:
    return cast(Kind, request.param)


@pytest.fixture
def client(server: Server, which: Kind) -> Iterator[Client]:
    with of_kind(which, server.url) as client:
        yield client


def failure(code: str, message: str = "no", **about: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **about}}


def test_submit_tried_again_is_one_job(server: Server, client: Client) -> None:
    server.answers = [(503, failure("storage_unavailable")), (502, b"<html>"), (201, JOB)]
    body = {"model": "echo", "messages": [user_message("你好 😀")]}
    job = client.submit(body)
    assert job.id == "job-1"
    assert job.status is JobState.QUEUED
    assert [request[:2] for request in server.seen] == [("POST", "/v1/jobs")] * 3
    assert all(request[3] == body for request in server.seen)
    keys = {request[2]["Idempotency-Key"] for request in server.seen}
    assert len(keys) == 1
    client.submit(body)
    assert server.seen[-1][2]["Idempotency-Key"] not in keys
    client.submit(body, idempotency_key="mine")
    assert server.seen[-1][2]["Idempotency-Key"] == "mine"


@pytest.mark.parametrize("status", [404, 418, 502])
def test_no_error_shows_the_password_of_the_url(server: Server, which: Kind, status: int) -> None:
    server.answers = [(status, b"<html>")]
    url = server.url.replace("//", "//joe:p%40ss@")
    with of_kind(which, url) as client, pytest.raises(errors.OmniJobsError) as raised:
        client.get("job-1")
    assert raised.value.message.endswith(f"from {server.url}/v1/jobs/job-1")
    assert "Basic" in server.seen[0][2]["Authorization"]


@pytest.mark.parametrize(("given", "sent"), [(90, "90.000"), (1.5, "1.500"), ("15m", "15m")])
def test_cancel_after_is_a_header(server: Server, client: Client, given: float | str, sent: str) -> None:
    server.answers = [(202, JOB)]
    client.submit({}, cancel_after=given)
    assert server.seen[0][2]["Cancel-After"] == sent


def test_too_many_jobs_are_waited_for(server: Server, client: Client) -> None:
    server.headers = {"Retry-After": "1"}
    server.answers = [(429, failure("too_many_jobs")), (202, JOB)]
    began = time.monotonic()
    assert client.submit({}).id == "job-1"
    assert time.monotonic() - began >= 1
    assert len({request[2]["Idempotency-Key"] for request in server.seen}) == 1


def test_a_pause_in_milliseconds_is_kept(server: Server, client: Client) -> None:
    server.headers = {"retry-after-ms": "300", "Retry-After": "60"}
    server.answers = [(503, failure("server_busy")), (200, JOB)]
    began = time.monotonic()
    assert client.get("job-1").id == "job-1"
    assert time.monotonic() - began >= 0.3


def test_a_long_wait_is_for_the_caller_to_decide(server: Server, client: Client) -> None:
    server.headers = {"Retry-After": "45"}
    server.answers = [(429, failure("too_many_jobs", "full"))]
    with pytest.raises(errors.TooManyJobs, match="full") as raised:
        client.submit({})
    assert raised.value.retry_after_s == 45
    assert len(server.seen) == 1


def test_retry(server: Server, client: Client) -> None:
    server.answers = [(200, JOB), (200, {**JOB, "retries": 1})]
    assert client.retry("job-1", from_stage="second").retries == 1
    assert [request[:2] for request in server.seen] == [
        ("GET", "/v1/jobs/job-1"),
        ("POST", "/v1/jobs/job-1/retry?from_stage=second"),
    ]


def test_a_retry_whose_answer_was_lost_is_one_retry(server: Server, client: Client) -> None:
    again = {**JOB, "retries": 1}
    server.answers = [(200, JOB), (502, b""), (409, failure("conflict", "is queued")), (200, again)]
    assert client.retry("job-1").retries == 1
    server.answers = [(200, again), (409, failure("conflict", "is queued")), (200, again)]
    with pytest.raises(errors.Conflict):
        client.retry("job-1")


def test_delete(server: Server, client: Client) -> None:
    server.answers = [(200, JOB), (502, b""), (404, failure("not_found"))]
    client.delete("job-1")
    assert [request[0] for request in server.seen] == ["GET", "DELETE", "DELETE"]
    server.answers = [(404, failure("not_found"))]
    with pytest.raises(errors.NotFound):
        client.delete("job-1")


def test_events_and_filters(server: Server, client: Client) -> None:
    event = {"id": 1, "type": "job.failed", "at": "2026-01-01T00:00:00Z", "data": {"error": {"code": "quarantined"}}}
    server.answers = [(200, [event])]
    [found] = client.events("job-1")
    assert (found.type, found.data["error"]["code"]) == ("job.failed", "quarantined")
    server.answers = [(200, {"jobs": [JOB], "next_cursor": None})]
    client.list(error_code="quarantined", limit=5)
    assert server.seen[-1][1] == "/v1/jobs?limit=5&error_code=quarantined"
    server.answers = [(200, {"hello": 1})]
    with pytest.raises(errors.OmniJobsError, match=r"is no valid list\[EventView\]"):
        client.events("job-1")


def test_a_refusal_is_not_tried_again(server: Server, client: Client) -> None:
    server.headers = {"X-Request-Id": "req-1"}
    server.answers = [(422, failure("invalid_request", "must not be empty", field="messages"))]
    with pytest.raises(errors.InvalidRequest, match="must not be empty") as raised:
        client.submit({})
    assert raised.value.field == "messages"
    assert raised.value.__notes__ == ["X-Request-Id: req-1"]
    assert len(server.seen) == 1


def test_an_error_of_a_later_server_is_tried_again_where_that_says_so(server: Server, client: Client) -> None:
    server.answers = [(503, failure("of_a_later_version", retryable=True)), (200, JOB)]
    assert client.get("job-1").id == "job-1"
    server.answers = [(503, failure("of_a_later_version", retryable=False)), (200, JOB)]
    with pytest.raises(errors.OmniJobsError, match="of_a_later_version: no"):
        client.get("job-1")


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (404, failure("not_found"), errors.NotFound),
        (404, b"<html>", errors.NotFound),
        (409, failure("conflict"), errors.Conflict),
        (422, failure("idempotency_key_reused"), errors.IdempotencyKeyReused),
        (413, failure("request_too_large"), errors.RequestTooLarge),
        (415, failure("unsupported_content_type"), errors.UnsupportedContentType),
        (500, failure("invalid_config", field="a", key="b"), errors.ConfigError),
        (500, failure("of_a_later_version"), errors.OmniJobsError),
        (500, {"detail": "?"}, errors.OmniJobsError),
        (503, failure("broker_unavailable"), errors.BrokerUnavailable),
        (504, b"", errors.ServerUnavailable),
    ],
)
def test_an_error_is_of_its_codes_class(
    server: Server, client: Client, status: int, answer: Any, kind: type[errors.OmniJobsError]
) -> None:
    server.answers = [(status, answer)]
    with pytest.raises(errors.OmniJobsError) as raised:
        client.get("job-1")
    assert type(raised.value) is kind


def test_no_server(which: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "PAUSES_S", (0.01,))
    with (
        of_kind(which, "http://127.0.0.1:9") as client,
        pytest.raises(errors.ServerUnavailable, match="no answer from http"),
    ):
        client.list()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://"])
def test_not_a_url(which: Kind, url: str) -> None:
    with pytest.raises(errors.ConfigError, match="not http"):
        KINDS[which](url)


@pytest.mark.parametrize("named", ["OMNI_JOBS_API_KEY", "OMNI_JOBS_API_KEY_FILE", "omni_jobs_api_key"])
def test_of_the_settings_a_client_with_a_url_reads_its_key_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    (tmp_path / "key").write_text("the-key\n")
    monkeypatch.setenv(named, str(tmp_path / "key") if named.endswith("FILE") else "the-key")
    for other in ("OMNI_JOBS_URL", "OMNI_JOBS_DATABASE_URL", "OMNI_JOBS_LEASE_S"):
        monkeypatch.setenv(other, "")
    server.answers = [(200, JOB)]
    with Client(server.url) as client:
        client.get("job-1")
    assert server.seen[0][2]["Authorization"] == "Bearer the-key"


@pytest.mark.parametrize("variable", ["OMNI_JOBS_API_KEY", "OMNI_JOBS_API_KEY_FILE"])
def test_an_empty_key_is_not_as_if_there_were_none(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(errors.ConfigError, match="is empty") as caught:
        Client("http://127.0.0.1:9")
    assert caught.value.field == variable


def test_an_answer_of_something_else(server: Server, client: Client) -> None:
    server.answers = [(200, {"hello": "world"})]
    with pytest.raises(errors.OmniJobsError, match="no valid JobView: id: Field required"):
        client.get("job-1")


def test_wait_tells_of_each_change_once(server: Server, client: Client) -> None:
    running = {**JOB, "status": "in_progress"}
    server.answers = [(200, JOB), (200, running), (200, running), (200, {**JOB, "status": "completed"})]
    seen: list[str] = []
    job = client.wait("job-1", timeout=10, on_update=lambda job: seen.append(job.status.value))
    assert job.status is JobState.COMPLETED
    assert seen == ["queued", "in_progress", "completed"]


def test_a_wait_for_the_client_s_own_connections_says_nothing_of_the_server(server: Server, which: Kind) -> None:
    """A hundred polls that the server holds may have them all."""
    client = KINDS[which](server.url, timeout=7.0)
    assert client._http.timeout == httpx2.Timeout(7.0, pool=None)
    for held_s, limit in ((20.0, 27.0), (math.inf, None)):
        options = request_options(HttpRequest("GET", "/", held_s=held_s), 7.0, None)
        assert options["timeout"] == httpx2.Timeout(limit, pool=None)


def test_a_server_that_is_silent_is_named(server: Server, which: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with of_kind(which, url, timeout=0.01) as client, pytest.raises(errors.ServerUnavailable) as raised:
            client.get("job-1")
    said, _, reason = str(raised.value).rpartition(": ")
    assert said == f"no answer from {url}/v1/jobs/job-1"
    assert reason in ("timed out", "ReadTimeout")


def test_an_error_of_the_listener_is_not_the_server_s(server: Server, client: Client) -> None:
    """It may call another server, whose connections break."""

    def listen(job: JobView) -> None:
        raise httpx2.ConnectError("another server is away")

    server.answers = [(200, JOB)]
    with pytest.raises(httpx2.ConnectError, match="another server"):
        client.wait("job-1", on_update=listen)
    assert len(server.seen) == 1


def test_wait_lets_the_server_wait(server: Server, client: Client) -> None:
    server.answers = [(200, JOB), (200, {**JOB, "status": "completed"})]  # the first sooner than asked
    assert client.wait("job-1").status is JobState.COMPLETED
    assert [path for _, path, _, _ in server.seen] == ["/v1/jobs/job-1?wait=15.000"] * 2


def test_wait_with_updates_looks_at_once_and_then_often(server: Server, client: Client) -> None:
    server.answers = [(200, JOB), (200, JOB), (200, {**JOB, "status": "completed"})]
    client.wait("job-1", on_update=lambda job: None)
    paths = [path for _, path, _, _ in server.seen]
    assert paths == ["/v1/jobs/job-1", "/v1/jobs/job-1?wait=0.100", "/v1/jobs/job-1?wait=0.150"]


def test_wait_ends_in_time(server: Server, client: Client) -> None:
    server.answers = [(200, JOB)]
    with pytest.raises(TimeoutError, match=r"job job-1 is queued after 0\.2 s"):
        client.wait("job-1", timeout=0.2)


def test_who_waits_bears_a_longer_outage_than_a_call(server: Server, client: Client) -> None:
    away = (503, failure("database_unavailable"))
    server.answers = [away] * 6 + [(200, {**JOB, "status": "completed"})]
    with pytest.raises(errors.DatabaseUnavailable):
        client.get("job-1")
    assert len(server.seen) == 3
    assert client.wait("job-1", timeout=60).status is JobState.COMPLETED
    assert len(server.seen) == 7


def test_who_waits_in_vain_is_told_that_the_job_goes_on(server: Server, client: Client) -> None:
    server.answers = [(504, b"")]
    with pytest.raises(errors.ServerUnavailable, match="the job goes on: wait for job-1 again"):
        client.wait("job-1")
    assert len(server.seen) == 9


def test_no_pause_ends_after_the_timeout(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "WAIT_PAUSES_S", (0.01, 600.0))
    server.answers = [(504, b"")]
    with pytest.raises(errors.ServerUnavailable):
        client.wait("job-1", timeout=60)
    assert len(server.seen) == 2


@pytest.mark.parametrize("line", [3, None, ["a"]])
def test_a_line_of_a_bulk_that_is_none_is_named(server: Server, client: Client, line: Any) -> None:
    server.answers = [(200, b"")]
    with pytest.raises(TypeError, match=f"and not {type(line).__name__}$"):
        list(client.submit_bulk([line]))


def test_a_job_id_is_no_path(server: Server, client: Client) -> None:
    server.answers = [(200, JOB)]
    client.get("../../admin?x")
    assert server.seen[0][1] == "/v1/jobs/..%2F..%2Fadmin%3Fx"


def test_save_writes_text_and_artifacts(server: Server, client: Client, tmp_path: Path) -> None:
    done = {**JOB, "status": "completed", "result": {"text": "مرحبا\n"}, "artifacts": [ARTIFACT]}
    server.answers = [(200, done), (200, SOUND)]
    files = client.save(client.get("job-1"), tmp_path / "out")
    assert [path.name for path in files] == ["result.json", "text.txt", "audio.wav"]
    assert json.loads(files[0].read_text(encoding="utf-8"))["status"] == "completed"
    assert files[1].read_bytes() == "مرحبا\n".encode()
    assert files[2].read_bytes() == SOUND
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_save_writes_what_the_stages_of_a_failed_job_made(server: Server, client: Client, tmp_path: Path) -> None:
    server.answers = [(200, {**JOB, "status": "failed", "result_so_far": {"text": "An answer."}})]
    files = client.save(client.get("job-1"), tmp_path)
    assert [path.name for path in files] == ["result.json", "text.txt"]
    assert files[1].read_text(encoding="utf-8") == "An answer."


def test_a_damaged_artifact_leaves_no_file(server: Server, client: Client, tmp_path: Path) -> None:
    server.answers = [(200, {**JOB, "artifacts": [ARTIFACT]}), (200, SOUND[:-1] + b"x")]
    with pytest.raises(errors.ObjectCorrupt, match="digest"):
        client.save_artifact(client.get("job-1"), "audio.wav", tmp_path / "audio.wav")
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_cannot_leave_the_directory(server: Server, client: Client, tmp_path: Path) -> None:
    server.answers = [(200, {**JOB, "artifacts": [{**ARTIFACT, "name": "../audio.wav"}]}), (200, SOUND)]
    with pytest.raises(errors.InvalidRequest, match="names an artifact"):
        client.save(client.get("job-1"), tmp_path / "out")
    assert not (tmp_path / "audio.wav").exists()


def test_an_unknown_artifact(server: Server, client: Client) -> None:
    server.answers = [(200, {**JOB, "artifacts": [ARTIFACT]})]
    with pytest.raises(errors.NotFound, match=r"it has: audio\.wav"):
        client.artifact("job-1", "video.mp4")


def test_a_message_of_files(tmp_path: Path) -> None:
    make: Callable[[str], Path] = lambda name: (tmp_path / name, (tmp_path / name).write_bytes(b"abc"))[0]  # noqa: E731
    message = user_message("look", audio=[make("a.mp3")], images=[make("b.png")], videos=[make("c.mp4")])
    assert message == {
        "role": "user",
        "content": [
            {"type": "input_audio", "input_audio": {"data": "YWJj", "format": "mp3"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,YWJj"}},
            {"type": "text", "text": "look"},
        ],
    }
