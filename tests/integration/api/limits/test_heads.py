"""The limits of the HTTP server on heads, trailers and chunks, and what is no request at all."""

import json
import socket
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx2
import pytest

from tests import hostile
from tests.integration.api.limits.raw_clients import (
    DOORS,
    ECHO,
    GET,
    POST,
    ApiProcess,
    asked,
    connected,
    is_served,
    resident_bytes,
    rest_of,
)
from tests.integration.api_server import ApiServer


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
    with ApiProcess(tmp_path, valkey_server) as (port, pid), ExitStack() as stack:
        connections = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(4)]
        before = resident_bytes(pid)
        for connection in connections:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(begin)
                for _ in range(400):  # 25 MiB
                    connection.sendall(piece)
        assert resident_bytes(pid) - before < 32 << 20


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
