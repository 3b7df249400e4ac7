"""Clients that fall silent, dribble, do not read or leave: the server closes them in time, and cuts no answer."""

import json
import re
import select
import socket
import sqlite3
import struct
import threading
import time
from contextlib import ExitStack, closing

import pytest

from omni_jobs.settings import Settings
from tests.integration.api.limits.raw_clients import (
    DOORS,
    ECHO,
    GET,
    LONG_POLL,
    POST,
    WAIT_S,
    asked,
    connected,
    rest_of,
)
from tests.integration.api_server import ApiServer, parsed_error, serve


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
        connection.sendall(get * 2 + LONG_POLL.format(job).encode())
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
