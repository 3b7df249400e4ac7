"""Bad input over HTTP: each a clear 4xx naming the field, nothing stored, nothing crashed."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve
from tests.oracles import samples
from tests.unit.requests.test_requests import HELLO, REFUSED

ROOT = Path(__file__).parents[3]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def api(valkey_server: str, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[ApiServer]:
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("api"),
        broker_url=valkey_server,  # type: ignore[arg-type]
        stage_configs=ROOT / "stage_configs",
        models={"qwen2_5_omni": tiny_checkpoint},
        max_body_bytes=LIMIT,
    )
    Database(settings.resolved_database_url).migrate()
    with serve(settings) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_stored_nothing_crashed(api: ApiServer) -> Iterator[None]:
    yield
    assert api.http.get("/v1/jobs").json() == {"jobs": [], "next_cursor": None}
    assert list(api.services.store.list("")) == []
    assert api.http.get("/readyz").json()["status"] == "ready"


def refused(answer: httpx2.Response, status: int, field: str) -> dict[str, Any]:
    error = answer.json()["error"]
    assert (answer.status_code, error.get("field")) == (status, field), answer.text
    assert error["retryable"] is False
    return dict(error)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(api: ApiServer, name: str) -> None:
    body, field, complaint = REFUSED[name]
    answer = api.http.post(
        "/v1/jobs",
        content=json.dumps({"model": "qwen2_5_omni", "messages": HELLO, **body}),
        headers={"Content-Type": "application/json"},
    )
    assert complaint in refused(answer, 422, field)["message"]


def test_an_unknown_pipeline(api: ApiServer) -> None:
    error = refused(api.http.post("/v1/jobs", json={"model": "管道", "messages": HELLO}), 404, "model")
    assert "管道" in error["message"]


def test_a_huge_image(api: ApiServer) -> None:
    file = io.BytesIO()
    Image.new("L", (6000, 6000)).save(file, "PNG")  # 36 million pixels in a few kilobytes
    content = [samples.image_part(file.getvalue())]
    answer = api.http.post(
        "/v1/jobs", json={"model": "qwen2_5_omni", "messages": [{"role": "user", "content": content}]}
    )
    assert "6000×6000" in refused(answer, 413, "messages.0.content.0.image_url.url")["message"]


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", "application/jsonx",
     "application/json; charset=utf-16", "multipart/form-data; boundary=x; charset=latin-1", ""],
)  # fmt: skip
def test_the_wrong_content_type(api: ApiServer, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    refused(api.http.post("/v1/jobs", content=b'{"model": "echo"}', headers=headers), 415, "Content-Type")


JSON = json.dumps({"model": "qwen2_5_omni"}).encode()


@pytest.mark.parametrize(
    ("parts", "field", "complaint"),
    [
        ([("request", JSON), ("prompt_embeds", b"x")], "prompt_embeds", "takes no embeddings"),
        ([("prompt_embeds", b"x")], "request", "missing"),
        ([("request", JSON), ("request", JSON)], "request", "twice"),
        ([("request", JSON), ("音", b"x")], "音", "unknown part"),
        ([("request", b"{")], "body", "JSON"),
        ([("request", JSON)] * 5, "body", "Too many files"),
    ],
)
def test_wrong_parts(api: ApiServer, parts: list[tuple[str, bytes]], field: str, complaint: str) -> None:
    answer = api.http.post("/v1/jobs", files=[(name, ("file", data)) for name, data in parts])
    assert complaint in refused(answer, 422, field)["message"]


@pytest.mark.parametrize("text", [b"\xe9", b"\xed\xa0\x80", b"\xff"])
@pytest.mark.parametrize("charset", ["", "; charset=UTF-8"])
def test_a_part_of_text_that_is_no_utf8_is_not_taken_for_latin(api: ApiServer, text: bytes, charset: str) -> None:
    part = b'{"model": "echo", "messages": [{"role": "user", "content": "' + text + b'"}]}'
    body = b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n' + part + b"\r\n--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary=x{charset}"}
    assert "UTF-8" in refused(api.http.post("/v1/jobs", content=body, headers=headers), 422, "body")["message"]


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=x"])
def test_a_multipart_body_that_is_none(api: ApiServer, content_type: str) -> None:
    refused(api.http.post("/v1/jobs", content=JSON, headers={"Content-Type": content_type}), 422, "body")


def test_a_multipart_body_that_is_cut_off_says_so(api: ApiServer) -> None:
    """Wherever the cut is: a part that lacks its end would else count as missing."""
    head = 'Content-Disposition: form-data; name="{}"\r\n\r\n'.format
    embeds = b"\r\n--x\r\n" + head('prompt_embeds"; filename="embeds').encode() + b"abc"
    for end in (b"", b"\r\n--", b"\r\n--x", embeds, b"\r\n--x-"):
        body = b"--x\r\n" + head("request").encode() + JSON + end
        answer = api.http.post("/v1/jobs", content=body, headers={"Content-Type": "multipart/form-data; boundary=x"})
        assert "cut off" in refused(answer, 422, "body")["message"]


def test_parts_over_the_limit(api: ApiServer) -> None:
    files = {"request": ("file", JSON), "prompt_embeds": ("file", bytes(LIMIT))}
    refused(api.http.post("/v1/jobs", files=files), 413, "body")


def test_a_compressed_body(api: ApiServer) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused(api.http.post("/v1/jobs", content=b"\x1f\x8b", headers=headers), 415, "Content-Encoding")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 40_000, b'{"a":' * 40_000, b'{"model":\xed\xa0\x80}']
)
def test_a_body_that_is_no_json_object(api: ApiServer, body: bytes) -> None:
    refused(api.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"}), 422, "body")


def test_a_body_over_the_limit(api: ApiServer) -> None:
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "x" * LIMIT}]})
    answer = api.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert str(LIMIT) in refused(answer, 413, "body")["message"]


def test_a_body_over_the_limit_is_refused_before_it_is_sent(api: ApiServer) -> None:
    with socket.create_connection((api.host, api.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n{"
        )
        answer = b""
        while piece := connection.recv(65_536):  # ends: the server closes
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"field": "body"' in answer


def test_an_endless_body_is_refused_while_it_comes(api: ApiServer) -> None:
    """Chunks without end and without a length: the answer comes after the limit, the reading ends."""
    sent = 0
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection((api.host, api.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        answered = threading.Event()
        answer = bytearray()

        def read() -> None:
            try:
                while piece := connection.recv(65_536):
                    answer.extend(piece)
            except ConnectionError:
                pass
            answered.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            while not answered.is_set() and sent < 1000 * LIMIT:
                connection.sendall(chunk)
                sent += len(chunk)
        except ConnectionError:
            pass
        reader.join(20)
    assert answered.is_set()
    assert bytes(answer).startswith(b"HTTP/1.1 413")
    assert sent < 100 * LIMIT


def test_every_script_in_errors(api: ApiServer) -> None:
    for text in ("中文", "مرحبا", "🙂👩‍👩‍👧", "עברית", "हिन्दी", "e\u0301", "<script>alert(1)</script>"):
        answer = api.http.post("/v1/jobs", json={"model": "echo", "messages": HELLO, text: 1})
        refused(answer, 422, text)
        answer = api.http.post("/v1/jobs", json={"model": "qwen2_5_omni", "messages": HELLO, "modalities": ["audio"],
                                                 "audio": {"voice": text}})  # fmt: skip
        assert repr(text)[1:-1] in refused(answer, 422, "audio.voice")["message"]
