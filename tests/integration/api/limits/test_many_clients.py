"""The limits of the HTTP server on connections, and on bytes that bodies hold."""

import json
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.errors import ServerBusy
from omni_jobs.settings import Settings
from tests.integration.api.limits.raw_clients import (
    ECHO,
    GET,
    JSONL,
    LONG_POLL,
    POST,
    WAIT_S,
    ApiProcess,
    asked,
    connected,
    is_alive,
    is_served,
    rest_of,
)
from tests.integration.api_server import ApiServer, serve


def test_after_many_silent_connections_a_new_client_is_served(patient: ApiServer) -> None:
    """More connections than the limit are open, and none of them is late."""
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connected(patient))) for _ in range(128)]
        assert is_served(patient)
        silent[-1].sendall(GET)  # the last ones still stand
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_with_few_files_left_a_new_client_is_served(tmp_path: Path, valkey_server: str) -> None:
    with (
        ApiProcess(tmp_path, valkey_server, files=128, OMNI_JOBS_HEAD_LIMIT_S="300") as (port, _),
        ExitStack() as stack,
    ):
        for _ in range(200):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)))
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=WAIT_S) as client:
            for _ in range(3):
                assert client.get("/healthz").status_code == 200
                assert client.post("/v1/jobs", json=ECHO).status_code == 202


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
