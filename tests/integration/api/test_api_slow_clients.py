"""Clients of one tenant that send or read slowly, on real sockets: a server that is full serves others all the same."""

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.storage import artifact_key
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, parsed_error, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
PLACES = 12
WAIT_S = 30.0


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(
        update={
            "auth": "keys",
            "max_connections": PLACES,
            "head_limit_s": 300.0,
            "body_limit_s": 300.0,
            "silence_limit_s": 300.0,
        }
    )


@pytest.fixture
def keys(settings: Settings) -> dict[str, str]:
    """A key of each tenant: of ``slow`` and of ``other``."""
    database = Database(settings.resolved_database_url)
    with closing(database):
        for name in ("slow", "other"):
            Tenants(database).create(name)
        return {name: ApiKeys(database).create(name, ["admin"]).key for name in ("slow", "other")}


@pytest.fixture
def api(settings: Settings, keys: dict[str, str]) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def slow_ones(api: ApiServer) -> int:
    async def count() -> int:
        return sum(connection.is_slow() for connection in api.connections)  # type: ignore[attr-defined]

    return asyncio.run_coroutine_threadsafe(count(), api.loop).result(WAIT_S)


def connected(api: ApiServer) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT_S)
    connection.connect((api.host, api.port))
    return connection


def rest_of(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def submits(api: ApiServer, key: str, times: int = 1) -> list[int]:
    """Submit jobs, each on a connection of its own, and return the statuses."""
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://{api.host}:{api.port}/v1/jobs"
    options: Any = {"json": ECHO, "headers": headers, "trust_env": False, "verify": False, "timeout": WAIT_S}
    return [httpx2.post(url, **options).status_code for _ in range(times)]


BODY = json.dumps(ECHO).encode()
UPLOADS = {
    "single": ("/v1/jobs", "application/json"),
    "multipart": ("/v1/jobs", "multipart/form-data; boundary=x"),
    "bulk": ("/v1/jobs/bulk", "application/jsonl"),
}


def upload(key: str, door: str = "single", length: int = 100_000) -> bytes:
    path, content_type = UPLOADS[door]
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@contextmanager
def dribbling(connections: list[socket.socket], byte: bytes = b"a") -> Iterator[None]:
    """Send a byte on each connection, again and again, until the context ends."""
    ended = threading.Event()

    def dribble() -> None:
        while not ended.wait(0.1):
            for connection in connections:
                with suppress(OSError):
                    connection.send(byte)

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def flood(stack: ExitStack, api: ApiServer, request: bytes, number: int) -> list[socket.socket]:
    """Send a request on so many connections, and wait until the server finds all of them slow."""
    connections = [stack.enter_context(closing(connected(api))) for _ in range(number)]
    for connection in connections:
        connection.sendall(request)
    wait_until(lambda: slow_ones(api) == number, f"{slow_ones(api)} of {number} are slow")
    return connections


@pytest.mark.parametrize("door", UPLOADS)
def test_slow_bodies_of_one_tenant_leave_places_to_others(api: ApiServer, keys: dict[str, str], door: str) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connected(api))) for _ in range(PLACES)]
        for connection in connections:
            connection.sendall(upload(keys["slow"], door) + b"--x\r\n")
        with dribbling(connections):
            wait_until(lambda: slow_ones(api) == PLACES, "not all are slow")
            assert submits(api, keys["other"]) == [202]
            status, headers, error = parsed_error(rest_of(connections[-1]))  # the newest one learns why
            assert (status, error["code"], error["retryable"]) == (503, "server_busy", True)
            assert headers["connection"] == "close"
            assert submits(api, keys["other"], 2 * PLACES) == [202] * 2 * PLACES
            assert slow_ones(api) >= 1


def large_answer(api: ApiServer, key: str, kind: str) -> str:
    """Return the path of an answer that no socket's buffers hold: a job's artifact, or its result."""
    answer = api.http.post(
        "/v1/jobs", json=ECHO, headers={"Authorization": f"Bearer {key}", "Connection": "close"}
    ).json()
    job_id = answer["id"]
    with api.services.db.begin() as tx:
        if kind == "artifact":
            ref = api.services.store.put(artifact_key(job_id, "first", 1, "a.wav"), [bytes(1 << 20)] * 16)
            sql = (
                "INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)"
                " SELECT job_id, 'a.wav', id, 'audio/wav', :ref, 1.0 FROM stage_runs WHERE job_id = :job LIMIT 1"
            )
            tx.execute(text(sql), {"ref": ref.model_dump_json(), "job": job_id})
            return f"/v1/jobs/{job_id}/artifacts/a.wav"
        result = json.dumps({"text": "x" * (8 << 20)})
        update = "UPDATE stage_runs SET state = 'succeeded', result = :result WHERE job_id = :job"
        tx.execute(text(update), {"result": result, "job": job_id})
        tx.execute(text("UPDATE jobs SET state = 'completed' WHERE id = :job"), {"job": job_id})
    return f"/v1/jobs/{job_id}"


@pytest.mark.parametrize("how", ["keep-alive", "close"])
@pytest.mark.parametrize("kind", ["artifact", "result"])
def test_slow_downloads_of_one_tenant_leave_places_to_others(
    api: ApiServer, keys: dict[str, str], kind: str, how: str
) -> None:
    path = large_answer(api, keys["slow"], kind)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {keys['slow']}\r\nConnection: {how}\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connected(api))) for _ in range(PLACES)]
        for connection in connections:
            connection.sendall(f"{request}\r\n".encode())
            assert connection.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: slow_ones(api) == PLACES, "not all are slow")
        oldest = connections[0]
        assert submits(api, keys["other"], 2 * PLACES) == [202] * 2 * PLACES
        assert slow_ones(api) >= 1
        rest = rest_of(oldest) if how == "close" else b""
    if how == "close":
        assert len(rest) > 8 << 20  # a holder keeps its oldest ones, and they come to their ends


def test_slow_clients_are_left_alone_while_there_is_room(api: ApiServer, keys: dict[str, str]) -> None:
    with ExitStack() as stack:
        connections = flood(stack, api, upload(keys["slow"], length=len(BODY)), PLACES - 2)
        assert submits(api, keys["other"], 5) == [202] * 5
        assert slow_ones(api) == PLACES - 2
        for connection in connections:
            connection.sendall(BODY)
            assert connection.recv(100).startswith(b"HTTP/1.1 202")


def test_the_tenant_of_slow_requests_gets_no_further_places_on_a_full_server(
    api: ApiServer, keys: dict[str, str]
) -> None:
    """Else it would keep all of them, by coming more often than others do."""
    with ExitStack() as stack:
        flood(stack, api, upload(keys["slow"]), PLACES)
        assert submits(api, keys["slow"]) == [503]
        wait_until(lambda: len(api.connections) < PLACES, "the place is not free")
        assert submits(api, keys["slow"]) == [202]  # now the server is not full


def test_a_tenant_that_comes_again_and_again_keeps_nobody_out(api: ApiServer, keys: dict[str, str]) -> None:
    """A place is free at the latest when a second has gone by; until then others are told to try again."""
    request, ended = upload(keys["slow"]), threading.Event()

    def come_again() -> None:
        with ExitStack() as stack:
            connections: list[socket.socket] = []
            while not ended.is_set():
                closed = select.select(connections, [], [], 0.01)[0]
                for each in closed:
                    each.close()
                connections = [each for each in connections if each not in closed]
                while len(connections) < 2 * PLACES:
                    connections.append(stack.enter_context(closing(connected(api))))
                    with suppress(OSError):
                        connections[-1].sendall(request)

    thread = threading.Thread(target=come_again)
    thread.start()
    try:
        wait_until(lambda: slow_ones(api) > 1, "none is slow")
        for _ in range(5):
            wait_until(lambda: submits(api, keys["other"]) == [202], "others are kept out")
    finally:
        ended.set()
        thread.join()


def test_where_tenants_are_not_known_a_network_is_the_holder(settings: Settings) -> None:
    many = upload("none").replace(b"Host", b"X-Forwarded-For: 2001:db8::7\r\nHost")
    few = upload("none").replace(b"Host", b"X-Forwarded-For: 192.0.2.7\r\nHost")
    with serve(settings.model_copy(update={"auth": "off"})) as api, ExitStack() as stack:
        kept = [stack.enter_context(closing(connected(api))) for _ in range(4)]
        for connection in kept:
            connection.sendall(few)
        wait_until(lambda: slow_ones(api) == len(kept), "not all are slow")
        for number in range(PLACES - len(kept)):
            connection = stack.enter_context(closing(connected(api)))
            connection.sendall(many.replace(b"::7", b"::%d" % number))
        wait_until(lambda: slow_ones(api) == PLACES, "not all are slow")
        assert submits(api, "none") == [202]
        assert submits(api, "none") == [202]
        assert select.select(kept, [], [], 0)[0] == []
