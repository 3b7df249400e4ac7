"""Bad input over HTTP: each a clear 4xx naming the field, nothing stored, nothing crashed."""

import io
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from omni_jobs.database.database import Database
from tests.integration.api_server import ApiServer, checked_error, parsed_error, serve, server_settings
from tests.oracles import samples
from tests.unit.requests.test_requests import HELLO, REFUSED

LIMIT = 1 << 20
ECHO = {"model": "echo", "messages": HELLO}


@pytest.fixture(scope="module")
def api(valkey_server: str, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[ApiServer]:
    models = {"qwen2_5_omni": tiny_checkpoint}
    settings = server_settings(tmp_path_factory.mktemp("api"), valkey_server, models=models, max_body_bytes=LIMIT)
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
MULTIPART = "multipart/form-data; boundary=x"
NESTED = '; filename="a"\r\nContent-Type: multipart/mixed; boundary=y'
NOWHERE = "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


def part(name: str, content: bytes, more: str = "") -> bytes:
    """A part of a body whose boundary is x. ``more`` follows its name."""
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


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


@pytest.mark.parametrize(
    ("body", "field", "complaint"),
    [
        (part("request", b"--y\r\n" + part("request", JSON, '; filename="a"') + b"--y--", NESTED), "request", "twice"),
        (part("request", b"--y\r\n\r\n{}\r\n--y--", NESTED), "body", "JSON"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\n{}\r\n", "body", "name"),
        (b"--x\r\nContent-Type: application/json\r\n\r\n{}\r\n", "body", "name"),
        (b"--x\r\n\r\n{}\r\n", "body", "name"),
        (b"--x\r\nno header at all\r\n\r\n{}\r\n", "body", "invalid character"),
        (part("", JSON), "", "unknown part"),
        (part("../request", JSON), "../request", "unknown part"),
        (part("request\u202e", JSON), "request\u202e", "unknown part"),
        (part("a%0d%0aSet-Cookie: a=b", JSON), "a%0d%0aSet-Cookie: a=b", "unknown part"),
        (part("request", JSON) * 2, "body", "Too many fields"),
        (part("request", JSON, '; filename="a"') * 2, "request", "twice"),
        (part("prompt_embeds", JSON, '; filename="a"') * 2 + part("request", JSON), "prompt_embeds", "twice"),
        (part("request", JSON) + part("a", b"", '; filename=""') * 5000, "body", "Too many files"),
        (part("n" * 3000, JSON), "n" * 64, "unknown part"),
        (part("n" * 10_000, JSON), "body", "header size"),
        (part("request", JSON, f'; filename="{"n" * 10_000}"'), "body", "header size"),
        (b"--x\r\n" + b"A: b\r\n" * 1000 + b"\r\n\r\n", "body", "header count"),
    ],
)  # fmt: skip
def test_a_multipart_body_of_another_form(api: ApiServer, body: bytes, field: str, complaint: str) -> None:
    answer = api.http.post("/v1/jobs", content=body + b"--x--\r\n", headers={"Content-Type": MULTIPART})
    assert complaint in refused(answer, 422, field)["message"]
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("boundary", ["", "y", "x" * 5000, '"x', "x, boundary=y", "%00", "é"])
def test_another_boundary_than_that_of_the_body(api: ApiServer, boundary: str) -> None:
    headers = [(b"Content-Type", f"multipart/form-data; boundary={boundary}".encode("latin-1"))]
    refused(api.http.post("/v1/jobs", content=part("request", JSON) + b"--x--\r\n", headers=headers), 422, "body")


HOSTILE = ("../../etc/passwd", "C:\\..\\passwd", "passwd\u202egpj.exe", "passwd\0.wav", "passwd%0d%0aSet-Cookie: a=b",
           'passwd\\"; name=\\"other', "passwd" * 500, "", ".", "\u2028passwd")  # fmt: skip


@pytest.mark.parametrize("filename", HOSTILE)
def test_no_file_name_of_a_part_reaches_anything(api: ApiServer, filename: str) -> None:
    """It names no file, no part and no header, and is in no answer."""
    body = part("request", json.dumps(ECHO).encode(), f'; filename="{filename}"') + b"--x--\r\n"
    answer = api.http.post("/v1/jobs", content=body, headers={"Content-Type": MULTIPART})
    assert answer.status_code == 202, answer.text
    assert "passwd" not in answer.text
    assert "passwd" not in str(answer.headers)
    assert list(api.services.store.list("")) == []
    forget(api, answer.json()["id"])


def forget(api: ApiServer, job_id: str) -> None:
    assert api.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert api.http.delete(f"/v1/jobs/{job_id}").status_code == 204


@pytest.mark.parametrize("text", ["a\r\nSet-Cookie: a=b", "\u202ea", "../../a", "\x1b[2J", "<script>", "a\u2028b"])
def test_metadata_are_text_and_nothing_more(api: ApiServer, text: str) -> None:
    answer = api.http.post("/v1/jobs", json={**ECHO, "metadata": {text: text}})
    assert (answer.status_code, answer.json()["metadata"]) == (202, {text: text})
    job_id = answer.json()["id"]
    for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events", "/v1/jobs", "/v1/status"):
        shown = api.http.get(path)
        assert "set-cookie" not in shown.headers
        assert shown.headers["content-type"] == "application/json"
    forget(api, job_id)


@pytest.mark.parametrize("name", ["model", "metadata"])
def test_nul_is_no_text(api: ApiServer, name: str) -> None:
    value = {"a": "b\0"} if name == "metadata" else "echo\0"
    refused(api.http.post("/v1/jobs", json={**ECHO, name: value}), 422, "metadata.a" if name == "metadata" else name)


def test_damaged_multipart_bodies_are_refused_or_name_a_pipeline_that_nobody_has(api: ApiServer) -> None:
    chance = random.Random(35)
    body = part("request", b'{"model": "nowhere", "messages": []}') + part("prompt_embeds", b"abc", '; filename="a"')
    body += b"--x--\r\n"
    for _ in range(300):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(damaged))
            match chance.randrange(4):
                case 0:
                    damaged[at] = chance.randrange(256)
                case 1:
                    del damaged[at : at + chance.randrange(1, 20)]
                case 2:
                    damaged[at:at] = chance.choice([b"\r\n", b"--x", b"\0", b'"', b";", b"\r\n\r\n", b"--x--"])
                case _:
                    damaged = damaged[:at] or damaged
        answer = api.http.post("/v1/jobs", content=bytes(damaged), headers={"Content-Type": MULTIPART})
        checked_error(answer.status_code, answer.headers, answer.content)
        assert answer.status_code in (404, 422), bytes(damaged)


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


def sent(api: ApiServer, head: str, content: bytes, *, half_closes: bool = False) -> bytes:
    """What the server sends until it closes the connection, to a request whose body may never come."""
    with socket.create_connection((api.host, api.port), timeout=60) as connection:
        connection.sendall(f"POST {head}\r\nHost: localhost\r\n\r\n".encode() + content)
        if half_closes:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    ("path", "content_type", "status", "field"),
    [
        ("/v1/jobs", "application/json", 413, "body"),
        ("/v1/jobs", MULTIPART, 413, "body"),
        ("/v1/jobs", "text/plain", 415, "Content-Type"),
        ("/v1/jobs/bulk", MULTIPART, 415, "Content-Type"),
        (f"/v1/jobs/{NOWHERE}/cancel", "application/json", 404, "job_id"),
        (f"/v1/jobs/{NOWHERE}/retry", "application/json", 404, "job_id"),
        (f"/v1/jobs/{NOWHERE}/fork", "application/json", 413, "body"),
        ("/v1/pipelines/nowhere/stages/first/pause", "application/json", 404, "name"),
    ],
)
def test_a_body_of_10_gb_is_refused_before_it_is_sent(
    api: ApiServer, path: str, content_type: str, status: int, field: str | None
) -> None:
    head = f"{path} HTTP/1.1\r\nContent-Type: {content_type}\r\nContent-Length: {10 << 30}"
    found, _, error = parsed_error(sent(api, head, b"--x\r\n{"))
    assert (found, error["field"]) == (status, field)


@pytest.mark.parametrize(
    ("path", "content_type", "content"),
    [
        ("/v1/jobs", "application/json", b'{"model": "echo", "messages": [{"role": "user", "content": "He'),
        ("/v1/jobs", MULTIPART, b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n{"model": "echo"'),
        ("/v1/jobs/bulk", "application/jsonl", b'{"model": "echo", "messages": [{"role": "user", "content": "He'),
    ],
)
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_body_that_ends_early_is_no_submit(
    api: ApiServer, path: str, content_type: str, content: bytes, length: str
) -> None:
    if "chunked" in length:
        content = b"%x\r\n%b\r\n" % (len(content), content)  # and no last chunk
    head = f"{path} HTTP/1.1\r\nContent-Type: {content_type}\r\n{length}"
    answer = sent(api, head, content, half_closes=True)
    assert b" 202 " not in answer
    assert b" 500 " not in answer


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
