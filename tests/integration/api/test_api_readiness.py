"""What /readyz knows, on both databases, and whom it tells."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine, make_url, text

from omni_jobs.database import postgresql, sqlite
from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
PATIENCE_S = 60.0


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pipelines": ("echo",)})


@pytest.fixture(autouse=True)
def _short_waits_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_S", 1.0)
    monkeypatch.setattr(
        postgresql, "_SESSION", postgresql._SESSION.replace("lock_timeout = '10s'", "lock_timeout = '1s'")
    )


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ready(api: ApiServer, **headers: str) -> tuple[int, dict[str, Any]]:
    answer = api.http.get("/readyz", headers=headers)
    return answer.status_code, answer.json()


@contextmanager
def writer_that_is_stopped(url: str) -> Iterator[None]:
    """Keep every other writer from writing, as a process does that is stopped within a transaction."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(str(make_url(url).database), isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield
        return
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with closing(engine.connect()) as connection:
        connection.execute(text("LOCK TABLE write_checks IN ACCESS EXCLUSIVE MODE"))
        yield
    engine.dispose()


def test_while_no_write_is_possible_it_is_not_ready(settings: Settings, database: Database) -> None:
    with serve(settings, gives_up_after_s=2.0) as api:
        assert ready(api)[0] == 200
        with writer_that_is_stopped(settings.resolved_database_url):
            until(lambda: ready(api)[0] == 503)
            status, found = ready(api)
            assert (status, found["status"]) == (503, "unavailable")
            assert found["database"]["error"]["code"] == "database_unavailable"
            assert found["storage"]["ok"] is True
        until(lambda: ready(api)[0] == 200)


def test_many_who_ask_cost_two_threads(settings: Settings, database: Database) -> None:
    with serve(settings) as api, ThreadPoolExecutor(64) as clients:
        ready(api)
        before = {thread.ident for thread in threading.enumerate() if "AnyIO" in thread.name}

        def asks(_: int) -> int:
            url = f"{api.http.base_url}/readyz"
            return httpx2.get(url, trust_env=False, verify=False, timeout=PATIENCE_S).status_code

        assert set(clients.map(asks, range(400))) == {200}
        new = [thread for thread in threading.enumerate() if "AnyIO" in thread.name and thread.ident not in before]
        assert len(new) <= 2


def test_where_callers_have_keys_only_they_are_told(settings: Settings, database: Database) -> None:
    Tenants(database).create("acme")
    key = ApiKeys(database).create("acme", ["read"]).key
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        for headers in ({}, {"Authorization": "Bearer no-key"}, {"Authorization": f"Bearer omni_{'A' * 43}"}):
            assert ready(api, **headers) == (200, {"status": "ready"})
        told = ready(api, Authorization=f"Bearer {key}")[1]
        assert told["database"] == {"ok": True, "error": None}
        assert set(told["pipelines"]) == {"echo"}


def test_no_answer_tells_a_stranger_where_the_database_is(settings: Settings) -> None:
    """The database refuses connections; a key that nobody has seen cannot be looked up."""
    url = "postgresql://somebody@127.0.0.1:9/omni"
    with serve(settings.model_copy(update={"auth": "keys", "database_url": url}), gives_up_after_s=2.0) as api:
        assert ready(api) == (503, {"status": "unavailable"})
        answer = api.http.get("/v1/status", headers={"Authorization": f"Bearer omni_{'A' * 43}"}, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert not any(word in answer.text for word in ("127.0.0.1", "port", "somebody", ":9"))


def test_who_was_known_is_told_what_is_wrong_while_keys_cannot_be_looked_up(
    settings: Settings, database: Database
) -> None:
    Tenants(database).create("acme")
    key = {"Authorization": f"Bearer {ApiKeys(database).create('acme', ['read']).key}"}
    with serve(settings.model_copy(update={"auth": "keys"}), gives_up_after_s=2.0) as api:
        assert ready(api, **key)[0] == 200
        with writer_that_is_stopped(settings.resolved_database_url):
            until(lambda: ready(api, **key)[0] == 503)
            assert ready(api, **key)[1]["database"]["error"]["code"] == "database_unavailable"
