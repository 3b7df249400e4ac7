"""Bulks that are broken off by their client, its key or its quota, and are sent again."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.numbered_bulk import (
    AT_ONCE,
    BULK,
    GROUP,
    HEAD,
    LINES,
    N,
    broken_by,
    check_the_rest_is_made,
    check_truth,
    jobs_by_line,
    on,
    parsed,
    read_some,
    send,
    slow_reader,
    until,
    url_of,
    without_chunks,
)


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    return server_settings(tmp_path / "data", valkey_url)


# The client breaks off


@pytest.fixture
def api(settings: Settings, database: Database, database_url: str) -> Iterator[ApiServer]:
    with serve(on(settings, database_url)) as server:
        yield server


@pytest.mark.parametrize("how", ["with a length", "in chunks", "without reading on"])
def test_a_client_that_leaves_in_the_middle_of_its_lines(api: ApiServer, database: Database, how: str) -> None:
    """In the middle of a line, which is then no line."""
    content = b"".join(LINES[:AT_ONCE]) + LINES[AT_ONCE][:-1]
    if how == "in chunks":
        head, content = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n" % (len(content), content)
    else:
        head = f"{HEAD}Content-Length: {len(BULK)}\r\n\r\n"
    with closing(slow_reader(url_of(api))) as connection:
        connection.sendall(head.encode() + content)
        until(lambda: jobs_by_line(database))
        if how == "without reading on":
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(4096) == b""
    check_the_rest_is_made(url_of(api), database, None)


def test_a_client_that_leaves_in_the_middle_of_the_answers(api: ApiServer, database: Database) -> None:
    with closing(slow_reader(url_of(api))) as connection:
        assert read_some(connection).startswith(b"HTTP/1.1 200")
    jobs = jobs_by_line(database)
    assert len(jobs) == N
    check_the_rest_is_made(url_of(api), database, jobs)


def test_a_client_that_pauses_for_too_long_is_told_what_was_made(
    settings: Settings, database: Database, database_url: str
) -> None:
    lines = b"".join(LINES[:AT_ONCE])
    with serve(on(settings, database_url, silence_limit_s=1.0)) as api, closing(slow_reader(url_of(api))) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{len(lines):x}\r\n".encode() + lines + b"\r\n")
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        answers, last = parsed(without_chunks(rest))
        jobs = jobs_by_line(database)
        check_truth(answers, jobs)
        assert last is not None
        assert last["error"]["code"] == "too_slow"
        assert len(jobs) == len(answers) == last["accepted"] == AT_ONCE // GROUP * GROUP
        check_the_rest_is_made(url_of(api), database, jobs)


# The key is revoked, or the quota is reached


@pytest.fixture
def with_keys(settings: Settings, database: Database, database_url: str) -> Iterator[ApiServer]:
    Tenants(database).create("acme")
    with serve(on(settings, database_url, auth="keys")) as server:
        yield server


def test_a_key_that_is_revoked(with_keys: ApiServer, database: Database) -> None:
    keys, url = ApiKeys(database), url_of(with_keys)
    first, second = (keys.create("acme", ["submit", "read"]) for _ in range(2))
    header = {"Authorization": f"Bearer {first.key}"}

    def revoke() -> None:
        keys.revoke(first.id)
        until(lambda: with_keys.http.get("/v1/status", headers=header).status_code == 401)

    answers, last = parsed(send(url, broken_by(database, revoke), **header).content)
    jobs = jobs_by_line(database)
    check_truth(answers, jobs)
    assert last is not None
    assert (last["error"]["code"], last["error"]["retryable"]) == ("unauthenticated", False)
    assert 0 < len(jobs) == len(answers) == last["accepted"] < N
    assert send(url, BULK, **header).status_code == 401
    assert jobs_by_line(database) == jobs
    check_the_rest_is_made(url, database, jobs, Authorization=f"Bearer {second.key}")


@pytest.mark.parametrize(
    ("limit", "most", "code"), [("queued_jobs", 1000, "too_many_jobs"), ("stored_bytes", 1_000_000, "too_much_stored")]
)
def test_a_quota_that_is_reached(
    settings: Settings, database: Database, database_url: str, limit: str, most: int, code: str
) -> None:
    Tenants(database).create("acme", limits={limit: most})
    header = {"Authorization": f"Bearer {ApiKeys(database).create('acme', ['submit']).key}"}
    with serve(on(settings, database_url, auth="keys")) as api:
        answers, last = parsed(send(url_of(api), BULK, **header).content)
    jobs = jobs_by_line(database)
    check_truth(answers, jobs)
    assert last == {"lines": N, "accepted": len(jobs), "refused": N - len(jobs)}
    assert 0 < len(jobs) < N
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert {(error["code"], error["retryable"]) for error in errors} == {(code, True)}
    Tenants(database).set("acme", limits={limit: None})
    with serve(on(settings, database_url, auth="keys")) as api:  # knows the new limit at once
        check_the_rest_is_made(url_of(api), database, jobs, **header)
