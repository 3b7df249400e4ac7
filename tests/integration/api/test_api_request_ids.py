"""Each answer names its request's id, and so do the log lines of the request."""

import os
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import httpx2
import pytest

from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, checked_error, parsed_error

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
NEW_ID = re.compile(r"req-[0-9a-f]{32}")
BROKEN_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA B: c\r\n\r\n"
OWN_ID = b"X-Request-Id: mine\r\n"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def raw_answers(api: ApiServer, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Send requests on one connection, each after the answer to the one before. Return statuses, headers, bodies."""
    found = []
    with socket.create_connection((api.host, api.port), timeout=30) as connection, connection.makefile("rb") as file:
        for request in requests:
            connection.sendall(request)
            status = int(file.readline().split()[1])
            lines = iter(lambda: file.readline().decode("latin-1").rstrip("\r\n"), "")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            found.append((status, headers, file.read(int(headers["content-length"]))))
    return found


def get(*headers: bytes) -> bytes:
    return b"\r\n".join([b"GET /healthz HTTP/1.1", b"Host: localhost", *headers, b"", b""])


@pytest.mark.parametrize("given", ["a", "req_0.1-B", str(uuid.UUID(int=7)), "x" * 128])
def test_a_client_chooses_the_id(api: ApiServer, given: str) -> None:
    for path in ("/healthz", "/v1/jobs", "/", "/nope", "/v1/jobs?limit=0"):
        assert api.http.get(path, headers={"X-Request-Id": given}).headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b"X-Request-Id:"],
        [b"X-Request-Id: a b"],
        [b"X-Request-Id: a;b"],
        [b"X-Request-Id: " + b"x" * 129],
        [b"X-Request-Id: " + b"x" * 10_240],
        [b"X-Request-Id: \xff\xfe"],
        [b"X-Request-Id: a", b"X-Request-Id: b"],
    ],
    ids=["none", "empty", "space", "semicolon", "129", "10 kB", "no ASCII", "two"],
)
def test_what_is_no_id_is_passed_over(api: ApiServer, headers: list[bytes]) -> None:
    [(status, answered, body)] = raw_answers(api, get(*headers))
    assert (status, body) == (200, b'{"status":"ok"}')
    assert NEW_ID.fullmatch(answered["x-request-id"])


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n ", b"\0", b"\x1b"], ids=["LF", "CR", "folded", "NUL", "escape"])
def test_an_id_with_a_control_character_is_refused(api: ApiServer, end: bytes) -> None:
    [(status, answered, body)] = raw_answers(api, get(b"X-Request-Id: a" + end + b"Set-Cookie: b=c"))
    assert (status, checked_error(status, answered, body)["code"]) == (400, "bad_request")
    assert NEW_ID.fullmatch(answered["x-request-id"])
    assert "set-cookie" not in answered


def test_what_follows_the_line_of_an_id_is_a_header_of_its_own(api: ApiServer) -> None:
    [(status, answered, _)] = raw_answers(api, get(b"X-Request-Id: a\r\nSet-Cookie: b=c"))
    assert (status, answered["x-request-id"]) == (200, "a")
    assert "set-cookie" not in answered


def test_a_header_of_a_megabyte(api: ApiServer) -> None:
    with socket.create_connection((api.host, api.port), timeout=30) as connection:
        connection.sendall(get(OWN_ID.strip(), b"A: " + b"x" * (1 << 20)))
        status, headers, error = parsed_error(connection.makefile("rb").read())
    assert (status, error["code"], headers["x-request-id"]) == (431, "head_too_large", "mine")


def test_a_refusal_has_the_id_of_its_own_request(api: ApiServer) -> None:
    """Not that of the request before it on the connection."""
    for broken, expected in (
        (BROKEN_HEAD, NEW_ID),
        (BROKEN_HEAD.replace(b"A B", OWN_ID + b"C: d\r\nA B"), re.compile("mine")),
        (b"?", NEW_ID),
    ):
        good, refused = raw_answers(api, get(b"X-Request-Id: earlier"), broken)
        assert (good[0], good[1]["x-request-id"]) == (200, "earlier")
        assert checked_error(*refused)["code"] == "bad_request"
        assert expected.fullmatch(refused[1]["x-request-id"])


def test_a_refusal_in_place_of_an_answer_has_the_id_of_the_request_in_flight(api: ApiServer) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += OWN_ID + b"Transfer-Encoding: chunked\r\n\r\n"
    [(status, headers, body)] = raw_answers(api, head + b"no chunk")
    assert checked_error(status, headers, body)["code"] == "bad_request"
    assert headers["x-request-id"] == "mine"


def test_streamed_answers_have_ids(api: ApiServer) -> None:
    headers = {"Content-Type": "application/jsonl", "X-Request-Id": "mine"}
    bulk = api.http.post("/v1/jobs/bulk", content=b"{}\n", headers=headers)
    assert (bulk.status_code, bulk.headers["x-request-id"]) == (200, "mine")


async def test_a_bug_has_the_requests_id() -> None:
    from omni_jobs.web.app import create_app

    app = create_app(Settings())

    @app.get("/raise")
    def route() -> None:
        raise RuntimeError

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/raise", headers={"X-Request-Id": "mine"})
    assert checked_error(answer.status_code, answer.headers, answer.content)["code"] == "internal"
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_log_lines_name_the_request(settings: Settings, tmp_path: Path) -> None:
    """Those of the server, of a route's thread, and of errors; of a request that was given an id and of one without."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        environment = {
            **os.environ,
            "OMNI_JOBS_DATA_DIR": str(tmp_path),
            "OMNI_JOBS_DATABASE_URL": "sqlite:////dev/null/none",
            "OMNI_JOBS_BROKER_URL": settings.broker_url.get_secret_value(),
        }
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(listener.fileno())]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen(
            command,
            env=environment,
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as server:
            try:
                with httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
                    made = http.get("/healthz").headers["x-request-id"]
                    http.get("/v1/jobs", headers={"X-Request-Id": "mine"})
            finally:
                server.terminate()
                log, _ = server.communicate(timeout=60)
    lines = log.splitlines()
    assert [line for line in lines if f"[{made}]" in line and '"GET /healthz HTTP/1.1" 200' in line], log
    of_mine = [line for line in lines if "[mine]" in line]
    assert [line for line in of_mine if '"GET /v1/jobs HTTP/1.1" 503' in line], log
    assert [line for line in of_mine if "GET /v1/jobs: " in line], log  # of omni_jobs.http.error_answers
    assert [line for line in lines if "[-] Application startup complete" in line], log
