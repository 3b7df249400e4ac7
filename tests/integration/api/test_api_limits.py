"""The limits of the HTTP server against endless heads, silent clients and endless bodies."""

import json
import os
import re
import select
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.errors import ServerBusy
from omni_jobs.settings import Settings
from tests import hostile
from tests.integration.api_server import SHIPPED, ApiServer, parsed_error, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
JSONL = {"Content-Type": "application/jsonl"}
WAIT_S = 30.0


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(
        update={
            "max_head_bytes": 16 << 10,
            "max_headers": 50,
            "max_connections": 20,
            "max_body_bytes": 4 << 20,
            "max_held_body_bytes": 8 << 20,
            "head_limit_s": 1.0,
            "body_limit_s": 3.0,
            "silence_limit_s": 1.0,
        }
    )


@pytest.fixture
def patient(settings: Settings) -> Iterator[ApiServer]:
    """A server whose time limits no test reaches."""
    given = {"head_limit_s": 300.0, "body_limit_s": 300.0, "silence_limit_s": 300.0}
    with serve(settings.model_copy(update=given)) as server:
        yield server


def connected(api: ApiServer) -> socket.socket:
    connection = socket.create_connection((api.host, api.port), timeout=WAIT_S)
    connection.settimeout(WAIT_S)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def asked(api: ApiServer, request: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    with connected(api) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        return parsed_error(rest_of(connection))


def is_served(api: ApiServer) -> bool:
    """Return whether a new client gets its answer."""
    with httpx2.Client(base_url=f"http://{api.host}:{api.port}", trust_env=False, timeout=WAIT_S) as client:
        return client.get("/healthz").status_code == 200 and client.post("/v1/jobs", json=ECHO).status_code == 202


def is_alive(api: ApiServer) -> bool:
    with httpx2.Client(base_url=f"http://{api.host}:{api.port}", trust_env=False, timeout=WAIT_S) as client:
        return client.get("/healthz").status_code == 200


# Heads


@pytest.mark.parametrize(
    "head",
    [
        hostile.head_of_headers(200_000),
        hostile.head_of_one_header(200_000),
        hostile.head_of_one_name(200_000),
        hostile.head_of_url(200_000),
        hostile.head_of_empty_lines(200_000),
        hostile.trailer(200_000),
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 60 + b"\r\n",
        b"GET /v1/jobs?" + b"a&" * 7000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["headers", "value", "name", "url", "empty lines", "trailer", "many small", "parameters"],
)
def test_a_head_without_a_bound(api: ApiServer, head: bytes) -> None:
    status, headers, error = asked(api, head)
    assert (status, error["code"]) == (431, "head_too_large")
    assert headers["connection"] == "close"
    assert is_served(api)


def test_a_head_within_the_bounds_is_served(api: ApiServer) -> None:
    more = {f"X-{number}": "x" * 300 for number in range(40)}
    with httpx2.Client(base_url=f"http://{api.host}:{api.port}", trust_env=False) as client:
        for _ in range(3):  # on one connection: each head is counted by itself
            assert client.get("/healthz", headers=more).status_code == 200


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"X-A: b\r\n" * 8192),
        (hostile.trailer(0), b"b" * 65_536),  # the submit waits for its body's end
    ],
    ids=["head", "trailer"],
)
def test_an_endless_head_costs_no_memory(tmp_path: Path, valkey_server: str, begin: bytes, piece: bytes) -> None:
    with _Process(tmp_path, valkey_server) as (port, pid), ExitStack() as stack:
        connections = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(4)]
        before = _rss(pid)
        for connection in connections:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(begin)
                for _ in range(400):  # 25 MiB
                    connection.sendall(piece)
        assert _rss(pid) - before < 32 << 20


@pytest.mark.parametrize("size", [200, 17_000])
def test_trailers(api: ApiServer, size: int) -> None:
    """Trailers are ignored, up to the bytes that a head may have."""
    body = json.dumps(ECHO).encode()
    chunked = b"%x\r\n%s\r\n0\r\n" % (len(body), body) + b"Origin: http://other.example\r\n" * (size // 30) + b"\r\n"
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with closing(connected(api)) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunked)
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 202" if size < 16 << 10 else b"HTTP/1.1 431"), answer


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_a_wish_for_an_upgrade_is_ignored(patient: ApiServer, pieces: int) -> None:
    """Clients of HTTP/2, such as Java's, send it with bodies too. What follows is HTTP/1.1."""
    body = json.dumps(ECHO).encode()
    head = POST[:-2] % (b"/v1/jobs", b"application/json", len(body))
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    sent = (head + body) * 2 + GET
    with closing(connected(patient)) as connection:
        for at in range(0, len(sent), pieces):
            connection.sendall(sent[at : at + pieces])
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 3 and (more := connection.recv(65_536)):
            answers += more
    assert [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]] == [b"202", b"202", b"200"], answers


@pytest.mark.parametrize("door", ["single", "bulk"])
def test_tiny_chunks(api: ApiServer, door: str) -> None:
    """Each costs as much as a large one, so that only small bodies may come in them."""
    path, content_type = DOORS[door]
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nConnection: close\r\n" % (path, content_type)
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    for spaces, statuses in ((0, (b"200", b"202")), (100_000, (b"431",))):
        body = b" " * spaces + json.dumps(ECHO).encode()
        with closing(connected(api)) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
            assert rest_of(connection)[9:12] in statuses


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"GET /healthz\r\n\r\n", 400, "bad_request"),  # HTTP/0.9
        (b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),  # TLS
        (b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n", 400, "bad_request"),
        (b"FOO /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 501, "method_unknown"),
        (b"get /healthz HTTP/1.0\r\n\r\n", 501, "method_unknown"),
        (b"GETT /v1/jobs?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 501, "method_unknown"),
        (b"FOO /healthz\r\n\r\n", 400, "bad_request"),  # HTTP/0.9
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400, "bad_request"),
        (
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "bad_request",
        ),
    ],
)
def test_what_is_no_request(api: ApiServer, request_: bytes, status: int, code: str) -> None:
    answered, _, error = asked(api, request_)
    assert (answered, error["code"]) == (status, code)


# Time


def test_silent_connections_are_closed(api: ApiServer) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connected(api))) for _ in range(10)]
        assert [rest_of(connection) for connection in silent] == [b""] * 10


def test_a_head_that_dribbles(api: ApiServer) -> None:
    with closing(connected(api)) as connection:
        ended = threading.Event()

        def dribble() -> None:
            for byte in GET[:-2] + b"X: " + b"y" * 1000:
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return
                if ended.wait(0.1):
                    return

        thread = threading.Thread(target=dribble)
        thread.start()
        status, _, error = parsed_error(rest_of(connection))
        ended.set()
        thread.join()
    assert (status, error["code"]) == (408, "too_slow")


POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
DOORS = {
    "single": (b"/v1/jobs", b"application/json"),
    "multipart": (b"/v1/jobs", b"multipart/form-data; boundary=x"),
    "bulk": (b"/v1/jobs/bulk", b"application/jsonl"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_body_that_falls_silent(api: ApiServer, door: str) -> None:
    status, _, error = asked(api, POST % (*DOORS[door], 100_000) + b"--x\r\n")
    assert (status, error["code"], error["field"]) == (408, "too_slow", "body")
    assert "1 s" in error["message"]


@pytest.mark.parametrize("door", DOORS)
def test_a_body_that_dribbles(settings: Settings, door: str) -> None:
    with (
        serve(settings.model_copy(update={"silence_limit_s": 60.0})) as api,
        closing(connected(api)) as connection,
    ):
        connection.sendall(POST % (*DOORS[door], 100_000) + b"--x\r\n")
        ended = threading.Event()

        def dribble() -> None:
            while not ended.wait(0.1):
                try:
                    connection.send(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=dribble)
        thread.start()
        status, _, error = parsed_error(rest_of(connection))
        ended.set()
        thread.join()
    assert (status, error["code"]) == (408, "too_slow")
    assert "3 s" in error["message"]


def test_a_body_that_is_answered_early_holds_no_connection(api: ApiServer) -> None:
    with closing(connected(api)) as connection:
        connection.sendall(POST % (b"/v1/jobs", b"text/plain", 100_000) + b"x")
        status, _, _ = parsed_error(rest_of(connection))  # comes to its end: the server closes
    assert status == 415


def test_a_client_that_does_not_read_its_answers(api: ApiServer) -> None:
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((api.host, api.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60)
        assert select.select([connection], [], [], WAIT_S)[0]  # the first answer is on its way
        deadline = time.monotonic() + WAIT_S
        while api.connections:
            assert time.monotonic() < deadline, "the server keeps the connection"
            time.sleep(0.05)


def test_a_client_that_does_not_read_its_last_answer(api: ApiServer, settings: Settings) -> None:
    """The server has closed the connection after that answer, and keeps the rest of it until it is sent."""
    path = _with_large_answer(api, settings)
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((api.host, api.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert select.select([connection], [], [], WAIT_S)[0]
        deadline = time.monotonic() + WAIT_S
        while api.connections:
            assert time.monotonic() < deadline, "the server keeps the connection"
            time.sleep(0.05)


def test_a_half_closed_connection_whose_answer_is_not_read(settings: Settings) -> None:
    """A part of the answer is left, too small to pause the server; and the next request waits."""
    limits = {"silence_limit_s": 3.0}  # time for a busy machine to come to the last request
    with serve(settings.model_copy(update=limits)) as api, closing(socket.socket()) as connection:
        job = api.http.post("/v1/jobs", json=ECHO, headers={"Connection": "close"}).json()["id"]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((api.host, api.port))
        deadline = time.monotonic() + WAIT_S
        # The submit's connection may be there still.
        while not (found := [each for each in api.connections if each.client == connection.getsockname()]):  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "the connection is not accepted"
            time.sleep(0.01)
        (protocol,) = found
        protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)  # type: ignore[attr-defined]
        get = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(get * 3 + LONG_POLL.format(job).encode())
        while not api.services.watch._watchers:
            assert time.monotonic() < deadline, "the poll does not wait"
            time.sleep(0.01)
        assert 0 < protocol.transport.get_write_buffer_size() < 64 << 10  # type: ignore[attr-defined]
        connection.shutdown(socket.SHUT_WR)
        while api.connections:
            assert time.monotonic() < deadline, "the server keeps the connection"
            time.sleep(0.05)


def test_clients_that_send_no_more_are_answered(patient: ApiServer) -> None:
    """As HTTP has it, and as some proxies, ``socat`` and ``ncat`` do it."""
    body = json.dumps(ECHO).encode()
    submit = POST % (b"/v1/jobs", b"application/json", len(body)) + body
    for request, statuses in (
        (GET, [b"200"]),
        (b"GET /healthz HTTP/1.0\r\n\r\n", [b"200"]),
        (submit, [b"202"]),
        (GET + submit + GET, [b"200", b"202", b"200"]),
        (GET + b"GET /healthz HTT", [b"200"]),
        (submit[:-1], []),
        (submit[:50], []),
    ):
        with connected(patient) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = rest_of(connection)
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == statuses, request
    deadline = time.monotonic() + WAIT_S
    while patient.connections:
        assert time.monotonic() < deadline, "the server keeps a connection"
        time.sleep(0.05)


@pytest.mark.parametrize("leaves", ["closes", "resets", "sends no more"])
def test_a_client_that_has_left_keeps_no_wait(patient: ApiServer, leaves: str) -> None:
    """Its places are free for others at once: who opens polls and drops them takes nobody's."""
    job = patient.http.post("/v1/jobs", json=ECHO).json()["id"]
    poll = LONG_POLL.format(job).encode()
    watch = patient.services.watch
    connections = [connected(patient) for _ in range(watch._most)]
    for connection in connections:
        connection.sendall(poll)
    deadline = time.monotonic() + WAIT_S
    while len(watch._watchers) < watch._most:
        assert time.monotonic() < deadline, "the polls do not wait"
        time.sleep(0.01)
    for connection in connections:
        if leaves == "sends no more":
            connection.shutdown(socket.SHUT_WR)
            assert b'"queued"' in rest_of(connection)
        elif leaves == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    while watch._watchers:
        assert time.monotonic() < deadline, "the waits go on"
        time.sleep(0.01)


def test_a_long_answer_that_does_not_wait_for_the_body_is_read_whole(patient: ApiServer, settings: Settings) -> None:
    """However slowly: the server waits for the rest of the body for a moment, and for the reader as usual."""
    path = _with_large_answer(patient, settings)
    with closing(connected(patient)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode())
        received = bytearray(connection.recv(4096))
        time.sleep(3.0)  # longer than that moment
        received += rest_of(connection)
    assert len(received) > 16 << 20


def _with_large_answer(server: ApiServer, settings: Settings) -> str:
    """The path of a job whose result has 16 MiB."""
    job = server.http.post("/v1/jobs", json=ECHO, headers={"Connection": "close"}).json()["id"]
    result = json.dumps({"text": "x" * (16 << 20)})
    with closing(sqlite3.connect(settings.resolved_database_url.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE stage_runs SET state = 'succeeded', result = ? WHERE job_id = ?", (result, job))
        database.execute("UPDATE jobs SET state = 'completed' WHERE id = ?", (job,))
    return f"/v1/jobs/{job}"


@pytest.mark.parametrize("limits", ["api", "patient"])
def test_a_client_that_reads_slowly_gets_its_answer_whole(
    request: pytest.FixtureRequest, settings: Settings, limits: str
) -> None:
    """It reads less within the limit of silence than is buffered, and longer than a connection may be idle."""
    server: ApiServer = request.getfixturevalue(limits)
    path = _with_large_answer(server, settings)
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT_S)
        connection.connect((server.host, server.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = bytearray(connection.recv(4096))
        begin = time.monotonic()
        while time.monotonic() - begin < 7.0:
            received += connection.recv(4096)
            time.sleep(0.1)
        assert len(received) < 1 << 20
        length = int(re.search(rb"content-length: (\d+)", received)[1])  # type: ignore[index]
        at = received.index(b"\r\n\r\n") + 4
        while len(received) < at + length and (piece := connection.recv(1 << 20)):
            received += piece
    assert len(json.loads(received[at:])["result"]["text"]) == 16 << 20


def test_a_long_poll_is_not_cut(api: ApiServer) -> None:
    job = api.http.post("/v1/jobs", json=ECHO).json()
    began = time.monotonic()
    answer = api.http.get(f"/v1/jobs/{job['id']}", params={"wait": 4})
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert time.monotonic() - began >= 3.9


# Numbers


def test_after_many_silent_connections_a_new_client_is_served(patient: ApiServer) -> None:
    """More connections than the limit are open, and none of them is late."""
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connected(patient))) for _ in range(128)]
        assert is_served(patient)
        silent[-1].sendall(GET)  # the last ones still stand
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_with_few_files_left_a_new_client_is_served(tmp_path: Path, valkey_server: str) -> None:
    with _Process(tmp_path, valkey_server, files=128, OMNI_JOBS_HEAD_LIMIT_S="300") as (port, _), ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)))
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=WAIT_S) as client:
            for _ in range(3):
                assert client.get("/healthz").status_code == 200
                assert client.post("/v1/jobs", json=ECHO).status_code == 202


LONG_POLL = "GET /v1/jobs/{}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW_BODY = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)


def test_when_every_connection_is_busy_one_more_is_answered_server_busy_and_health_is_served(
    settings: Settings,
) -> None:
    more = {"head_limit_s": 300.0, "max_waits": settings.max_connections}
    with ExitStack() as stack:
        patient = stack.enter_context(serve(settings.model_copy(update=more)))
        job = patient.http.post("/v1/jobs", json=ECHO, headers={"Connection": "close"}).json()["id"]
        for _ in range(settings.max_connections):
            stack.enter_context(closing(connected(patient))).sendall(LONG_POLL.format(job).encode())
        deadline = time.monotonic() + WAIT_S
        while len(patient.services.watch._watchers) < settings.max_connections:
            assert time.monotonic() < deadline, "the requests do not wait"
            time.sleep(0.01)
        for _ in range(100):  # they take what is spare, and send nothing
            stack.enter_context(closing(connected(patient)))
        for path in ("/healthz", "/readyz", "/readyz?"):
            for method in ("GET", "HEAD"):
                with closing(connected(patient)) as probe:
                    probe.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    assert rest_of(probe).startswith(b"HTTP/1.1 200")
        refused = []
        for request in (GET.replace(b"healthz", b"v1/jobs"), GET.replace(b"GET", b"POST"), SLOW_BODY) * 20:
            refused.append(stack.enter_context(closing(connected(patient))))
            refused[-1].sendall(request)
            answer = refused[-1].recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503"), answer
            assert b"retry-after: 1\r\n" in answer.lower()
            assert b'"code": "server_busy"' in answer
        assert is_alive(patient)  # although the refused read their answers slowly


def test_long_polls_leave_connections_to_others(patient: ApiServer, settings: Settings) -> None:
    """Half of the connections may wait; any further poll is answered at once with the job as it is."""
    job = patient.http.post("/v1/jobs", json=ECHO).json()
    poll = LONG_POLL.format(job["id"]).encode()
    with ExitStack() as stack:
        polls = [stack.enter_context(closing(connected(patient))) for _ in range(settings.max_connections)]
        for connection in polls:
            connection.sendall(poll)
        answered: set[socket.socket] = set()
        while len(answered) < settings.max_connections // 2:
            ready = select.select([each for each in polls if each not in answered], [], [], WAIT_S)[0]
            assert ready, "too few polls were answered"
            answered.update(ready)
        assert is_served(patient)
        assert patient.http.post(f"/v1/jobs/{job['id']}/cancel").status_code == 200  # now all are answered
        for connection in polls:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_bodies_that_are_held_back(patient: ApiServer) -> None:
    """The bytes of bodies are bounded over all requests, and given back with their answers."""
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "' + b"x" * 3_500_000
    with ExitStack() as stack:
        held = [stack.enter_context(closing(connected(patient))) for _ in range(2)]
        for connection in held:
            connection.sendall(POST % (b"/v1/jobs", b"application/json", len(body) + 4) + body)
        _wait_until_read(patient, 2 * len(body))
        status, headers, error = asked(patient, POST % (b"/v1/jobs", b"application/json", 2_000_000) + body)
        assert (status, error["code"], error["retryable"]) == (503, "server_busy", True)
        assert headers["retry-after"] == "1"
        assert is_served(patient)  # small ones pass
        for connection in held:
            connection.sendall(b'"}]}')
            assert connection.recv(100).startswith(b"HTTP/1.1 202")
    for _ in range(5):
        whole = {**ECHO, "messages": [{"role": "user", "content": "x" * 3_000_000}]}
        assert patient.http.post("/v1/jobs", json=whole).status_code == 202


def _wait_until_read(api: ApiServer, size: int) -> None:
    """Wait until the routes have read so many bytes of all bodies together."""
    deadline = time.monotonic() + WAIT_S
    while sum(cycle.scope["state"]["body"].received for cycle in _cycles(api)) < size:
        assert time.monotonic() < deadline, "the bodies are not read"
        time.sleep(0.01)


def _cycles(api: ApiServer) -> list[Any]:
    """Return the requests that are being handled."""
    cycles = [getattr(connection, "cycle", None) for connection in list(api.connections)]
    return [cycle for cycle in cycles if cycle is not None and "body" in cycle.scope["state"]]


def test_heads_alone_hold_nothing(patient: ApiServer) -> None:
    """The bytes that a head declares count once they have come."""
    with ExitStack() as stack:
        for _ in range(8):
            silent = stack.enter_context(closing(connected(patient)))
            silent.sendall(POST[:-2] % (b"/v1/jobs", b"application/json", 4 << 20) + b"Expect: 100-continue\r\n\r\n")
            assert silent.recv(100).startswith(b"HTTP/1.1 100")  # its body is waited for
        whole = {**ECHO, "messages": [{"role": "user", "content": "x" * 1_000_000}]}
        assert patient.http.post("/v1/jobs", json=whole).status_code == 202


def test_a_bulk_is_held_only_as_far_as_it_waits(patient: ApiServer) -> None:
    line = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "x" * 1000}]}).encode() + b"\n"
    answer = patient.http.post(
        "/v1/jobs/bulk", content=(line * 1000 for _ in range(12)), headers={"Content-Type": "application/jsonl"}
    )
    assert answer.status_code == 200
    assert json.loads(answer.text.splitlines()[-1])["accepted"] == 12_000


def echo(text: str) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]}).encode()


def test_a_line_near_the_limit_is_held_once(settings: Settings) -> None:
    """The limits have the proportions of the defaults."""
    lines = [*[echo("x" * 1_000_000)] * 3, echo("y" * 4_190_000)]
    with serve(settings.model_copy(update={"max_held_body_bytes": 2 * settings.max_body_bytes})) as api:
        answer = api.http.post("/v1/jobs/bulk", content=b"\n".join(lines), headers=JSONL)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text.splitlines()[-1]) == {"lines": 4, "accepted": 4, "refused": 0}


def test_a_bulk_goes_on_while_others_hold_nearly_all_there_is(patient: ApiServer) -> None:
    """Small lines pass in smaller groups. A line without room ends the bulk, and the answers name the jobs made."""
    body, large = echo("x" * 4_150_000), echo("x" * 300_000)
    with ExitStack() as stack:

        def hold() -> socket.socket:
            connection = stack.enter_context(closing(connected(patient)))
            connection.sendall(POST % (b"/v1/jobs", b"application/json", len(body)) + body[:-4])
            return connection

        held = [hold(), hold()]
        deadline = time.monotonic() + WAIT_S
        while (refused := patient.http.post("/v1/jobs/bulk", content=large, headers=JSONL)).status_code != 503:
            assert time.monotonic() < deadline
            answered, _, _ = select.select(held, [], [], 0)  # it came in while the bulk was held: once more
            held = [hold() if connection in answered else connection for connection in held]
        assert refused.json()["error"]["code"] == "server_busy"

        small = [echo("x" * 1000)] * 600
        answer = patient.http.post("/v1/jobs/bulk", content=b"\n".join(small), headers=JSONL)
        assert answer.status_code == 200, answer.text
        assert json.loads(answer.text.splitlines()[-1])["accepted"] == 600

        answers = []
        with (  # noqa: PT012 — the error comes after the answers
            Client(f"http://{patient.host}:{patient.port}") as client,
            pytest.raises(ServerBusy, match="no line after line 600 was submitted"),
        ):
            for answer in client.submit_bulk(iter([*small, large, *small])):
                answers.append(answer)
        assert [answer.line for answer in answers] == list(range(1, 601))
        assert all(answer.id is not None for answer in answers)

        for connection in held:
            connection.sendall(body[-4:])
            assert connection.recv(100).startswith(b"HTTP/1.1 202")
    answer = patient.http.post("/v1/jobs/bulk", content=large, headers=JSONL)
    assert json.loads(answer.text.splitlines()[-1])["accepted"] == 1


def test_clients_that_leave_give_back_what_they_held(patient: ApiServer) -> None:
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "' + b"x" * 3_500_000

    def leave(_: int) -> None:
        with closing(connected(patient)) as connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(POST % (b"/v1/jobs", b"application/json", len(body) + 4) + body)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(12)))
    whole = {**ECHO, "messages": [{"role": "user", "content": "x" * 3_900_000}]}
    deadline = time.monotonic() + WAIT_S
    while (answer := patient.http.post("/v1/jobs", json=whole)).status_code != 202:
        assert answer.status_code == 503
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)


# A server of its own


class _Process:
    """``omni-jobs api`` as a process: its port and pid."""

    def __init__(self, directory: Path, broker: str, files: int | None = None, **more: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        environment |= {
            "OMNI_JOBS_DATA_DIR": str(directory),
            "OMNI_JOBS_BROKER_URL": broker,
            "OMNI_JOBS_STAGE_CONFIGS": str(SHIPPED),
            **more,
        }
        Database(Settings(data_dir=directory).resolved_database_url).migrate()
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(listener.fileno())]
        if files is not None:
            command = ["prlimit", f"--nofile={files}:{files}", *command]
        with listener, open(directory / "api.log", "wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=(listener.fileno(),), stdout=log, stderr=log
            )

    def __enter__(self) -> tuple[int, int]:
        url = f"http://127.0.0.1:{self._port}/healthz"
        assert httpx2.get(url, timeout=60, trust_env=False).status_code == 200  # waits in the socket's line
        return self._port, self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


def _rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


@pytest.mark.parametrize("how", ["keep-alive", "close"])
def test_an_answer_that_does_not_wait_for_the_body_ends_the_connection_and_is_read_whole(
    patient: ApiServer, how: str
) -> None:
    """The client reads it while it still sends, gets no reset, and sends no other request on the connection."""
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: {how}\r\nContent-Type: text/plain\r\n"
        "Content-Length: 3000000\r\n\r\n"
    )
    with closing(connected(patient)) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(1 << 16)
        connection.sendall(b"x" * 500_000)  # a server that had closed would answer it with a reset
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"connection: close" in answer.lower()
    assert b"unsupported_content_type" in answer


def test_an_answer_behind_the_whole_body_keeps_the_connection(patient: ApiServer) -> None:
    with closing(connected(patient)) as connection:
        for _ in range(2):
            connection.sendall(POST % (b"/v1/jobs", b"text/plain", 10) + b"x" * 10)
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 415")
            assert b"connection: close" not in answer.lower()
