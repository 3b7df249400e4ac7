"""Media that requests name by URL: fetched before the job is made, within bounds, and in nobody's way.

The hosts are servers on loopback, which the guard of these tests takes for the internet.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.fetch.guard import Guard
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.media.test_media_wall import wait_for
from tests.oracles import samples

PNG = samples.image_part(samples.image())["image_url"]["url"]
PICTURE = samples.image()
WAV = samples.wav()
FIELD = "messages.0.content.0.image_url.url"
WAIT_S = 20.0

PIPELINE = """
name: seen
version: "1"
accepts: [text, image, audio, video]
stages:
  only: {kind: echo, processor: echo, produces: text, slots: 4}
outputs:
  text: {stage: only}
"""


class MediaHost(ThreadingHTTPServer):
    """Serves ``media`` by path; ``slow`` paths wait for ``go``.

    asked  the paths that were asked for, in their order; ``begun`` has a permit for each
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.media: dict[str, tuple[int, bytes]] = {"/a.png": (200, PICTURE), "/a.wav": (200, WAV)}
        self.asked: list[str] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: MediaHost

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.begun.release()
        if self.path.startswith("/slow"):
            self.server.go.wait(WAIT_S)
        status, data = self.server.media.get(self.path.removeprefix("/slow"), (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Location", "/a.png")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def media() -> Iterator[MediaHost]:
    with MediaHost() as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        yield host
        host.go.set()
        host.shutdown()
        thread.join()


@pytest.fixture
def served(valkey_server: str, tmp_path: Path, media: MediaHost, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "seen.yaml").write_text(PIPELINE)

    @contextmanager
    def start(**others: Any) -> Iterator[ApiServer]:
        more = {"stage_configs": tmp_path / "configs", "fetch": "public"} | others
        settings = server_settings(tmp_path, valkey_server, **more)
        Database(settings.resolved_database_url).migrate()
        if settings.fetch == "public":
            loopback = (IPv4Network("127.0.0.0/8"),)
            guard = Guard(ports=frozenset({media.server_port}), networks=loopback)
            monkeypatch.setattr(Guard, "of", lambda settings: guard)
        with serve(settings) as server:
            yield server

    return start


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def sound(url: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"url": url}}


def body(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "seen", "messages": [{"role": "user", "content": list(parts)}]}


def submit(api: ApiServer, *parts: dict[str, Any], key: str | None = None) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return api.http.post("/v1/jobs", json=body(*parts), headers=headers)


def refusal(answer: httpx2.Response) -> tuple[int, str, str | None, bool]:
    error = answer.json()["error"]
    assert answer.headers["x-should-retry"] == json.dumps(error["retryable"])
    assert "127.0.0.1" not in error["message"]
    return answer.status_code, error["code"], error["field"], error["retryable"]


def objects(directory: Path) -> set[bytes]:
    return {path.read_bytes() for path in (directory / "objects").rglob("*") if path.is_file()}


def test_media_by_url_are_those_of_the_job(served: Callable[..., Any], media: MediaHost, tmp_path: Path) -> None:
    with served() as api:
        answer = submit(api, image(media.url("/a.png")), sound(media.url("/a.wav")), image(PNG))
    assert answer.status_code == 202, answer.text
    assert sorted(media.asked) == ["/a.png", "/a.wav"]
    assert {PICTURE, WAV} <= objects(tmp_path)


@pytest.mark.parametrize("fetch", [{"fetch": "off"}, {"fetch": "hosts", "fetch_hosts": ("media.test", "127.0.0.1")}])
def test_nothing_is_fetched_that_the_setting_forbids(
    served: Callable[..., Any], media: MediaHost, fetch: dict[str, Any]
) -> None:
    with served(**fetch) as api:
        for url in (media.url("/a.png"), "http://127.0.0.1/a.png", "https://other.test/"):
            assert refusal(submit(api, image(url))) == (422, "invalid_request", FIELD, False)
    assert media.asked == []


def test_no_setting_and_no_request_reaches_this_machine(served: Callable[..., Any]) -> None:
    with served(fetch="hosts", fetch_hosts=("127.0.0.1", "localhost")) as api:
        for url in ("http://127.0.0.1/", "http://localhost/", "http://localhost:80/", "https://LocalHost./"):
            answer = submit(api, image(url))
            assert refusal(answer) == (422, "invalid_request", FIELD, False)
            assert "no public address" in answer.json()["error"]["message"]


def test_what_the_host_answers_is_the_requests_error(served: Callable[..., Any], media: MediaHost) -> None:
    media.media |= {
        "/moved": (302, b""),
        "/busy": (503, b""),
        "/html": (200, b"<html>"),
        "/empty": (200, b""),
        "/large": (200, b"x" * 5000),
    }
    with served(max_fetched_bytes=4096) as api:
        assert refusal(submit(api, image(media.url("/none")))) == (422, "media_unavailable", FIELD, False)
        assert refusal(submit(api, image(media.url("/moved")))) == (422, "media_unavailable", FIELD, False)
        assert refusal(submit(api, image(media.url("/busy")))) == (422, "media_host_unavailable", FIELD, True)
        assert refusal(submit(api, image(media.url("/large")))) == (413, "request_too_large", FIELD, False)
        for path in ("/html", "/empty"):
            status, code, field, _ = refusal(submit(api, image(media.url(path))))
            assert (status, code, field) == (422, "invalid_request", FIELD)
        assert api.http.get("/v1/jobs").json()["jobs"] == []
    assert media.asked.count("/a.png") == 0


def test_media_of_one_submit_have_their_bound_together(served: Callable[..., Any], media: MediaHost) -> None:
    with served(max_fetched_bytes=3 * len(WAV) // 2) as api:
        assert submit(api, sound(media.url("/a.wav"))).status_code == 202
        answer = submit(api, sound(media.url("/a.wav")), sound(media.url("/a.wav")))
    assert answer.status_code == 413, answer.text


def test_no_url_is_fetched_for_a_request_that_is_refused_anyway(served: Callable[..., Any], media: MediaHost) -> None:
    url = media.url("/a.png")
    with served(max_media_parts=2) as api:
        assert submit(api, *[image(url)] * 3).status_code == 413
        of_assistant = {"model": "seen", "messages": [{"role": "assistant", "content": [image(url)]}]}
        assert api.http.post("/v1/jobs", json=of_assistant).status_code == 422
        assert api.http.post("/v1/jobs", json=body(image(url)) | {"model": "none"}).status_code == 404
        as_data = {"type": "input_audio", "input_audio": {"data": url}}
        assert refusal(submit(api, as_data))[2] == "messages.0.content.0.input_audio.data"
        both = {"type": "input_audio", "input_audio": {"data": "QUJD", "url": url}}
        assert refusal(submit(api, both))[2] == "messages.0.content.0.input_audio"
    assert media.asked == []


def test_a_repeated_submit_is_the_same_job_though_its_media_are_gone(
    served: Callable[..., Any], media: MediaHost
) -> None:
    with served() as api:
        first = submit(api, image(media.url("/a.png")), key="one")
        media.media.clear()
        again = submit(api, image(media.url("/a.png")), key="one")
        other = submit(api, image(media.url("/b.png")), key="one")
        new = submit(api, image(media.url("/a.png")), key="two")
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert new.json()["error"]["code"] == "media_unavailable"
    assert media.asked == ["/a.png", "/a.png"]


def test_a_slow_host_holds_up_nobody_but_those_who_wait_for_a_place(
    served: Callable[..., Any], media: MediaHost
) -> None:
    slow, quick = image(media.url("/slow/a.png")), image(media.url("/a.png"))
    with served(max_fetches=1) as api, ThreadPoolExecutor(2) as threads:
        first = threads.submit(submit, api, slow)
        assert media.begun.acquire(timeout=WAIT_S)
        assert submit(api, {"type": "text", "text": "Hello"}).status_code == 202
        assert submit(api, image(PNG)).status_code == 202
        second = threads.submit(submit, api, quick)
        wait_for(lambda: api.services.fetches.waiting == 1)
        assert not first.done()
        assert media.asked == ["/slow/a.png"]
        media.go.set()
        assert first.result(WAIT_S).status_code == second.result(WAIT_S).status_code == 202


def test_one_who_waits_for_a_place_too_long_is_told_so(served: Callable[..., Any], media: MediaHost) -> None:
    slow = image(media.url("/slow/a.png"))
    with served(max_fetches_per_tenant=1, fetch_limit_s=0.5) as api, ThreadPoolExecutor(3) as threads:
        answers = [each.result(WAIT_S) for each in [threads.submit(submit, api, slow) for _ in range(3)]]
    assert {refusal(each)[:2] for each in answers} == {(422, "media_host_unavailable"), (503, "server_busy")}
    assert all(refusal(each)[3] for each in answers)


def test_bytes_that_are_held_are_bounded(served: Callable[..., Any], media: MediaHost) -> None:
    media.media["/large"] = (200, b"x" * (5 << 20))
    limits = {"max_body_bytes": 1 << 20, "max_held_body_bytes": 6 << 20, "max_fetched_bytes": 8 << 20}
    with served(**limits) as api:
        answer = submit(api, image(media.url("/large")), image(media.url("/large")))
        assert refusal(answer) == (503, "server_busy", answer.json()["error"]["field"], True)
        assert api.services.fetches.held_bytes == 0
        assert submit(api, image(media.url("/a.png"))).status_code == 202


def test_the_lines_of_a_bulk_name_media_by_url(served: Callable[..., Any], media: MediaHost) -> None:
    paths: Sequence[str] = ["/none" if number == 7 else "/a.png" for number in range(20)]
    lines = [json.dumps(body(image(media.url(path)))) for path in paths]
    lines.insert(3, json.dumps(body({"type": "text", "text": "Hello"})))
    with served() as api:
        content = "\n".join(lines)
        answer = api.http.post("/v1/jobs/bulk", content=content, headers={"Content-Type": "application/jsonl"})
    *answers, counts = map(json.loads, answer.text.splitlines())
    assert counts == {"lines": 21, "accepted": 20, "refused": 1}
    assert [each["line"] for each in answers] == list(range(1, 22))
    assert [each["line"] for each in answers if each.get("error", {}).get("code") == "media_unavailable"] == [9]
    assert len(media.asked) == 20
