"""The API while a service that it needs is away or full: its answers, what still works, and its recovery."""

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import redis
from sqlalchemy import event, text

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.settings import Settings
from omni_jobs.states import StageRunState
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.oracles import samples
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.seaweedfs import SeaweedFS

PIPELINE = """
name: echo
version: "1"
accepts: [text, audio]
stages:
  first: {kind: echo, processor: echo, produces: bytes, slots: 8, time_limit_s: 60, max_payload_bytes: 1000}
  second: {kind: echo, processor: echo, inputs: {first: bytes}, produces: text, slots: 8, time_limit_s: 60}
outputs:
  text: {stage: second}
"""
TEXT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
PATIENCE_S = 60.0


def sound(seconds: float = 0.2) -> dict[str, Any]:
    part = samples.audio_part(samples.wav(seconds=seconds))
    return {"model": "echo", "messages": [{"role": "user", "content": [part]}]}


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    """Settings on SQLite and a local directory, which are always available."""
    configs = tmp_path / "stage_configs"
    configs.mkdir()
    (configs / "echo.yaml").write_text(PIPELINE)
    settings = server_settings(tmp_path, valkey_url, stage_configs=configs)
    migrate(settings)
    return settings


def migrate(settings: Settings) -> None:
    database = Database(settings.resolved_database_url)
    database.migrate()
    database.close()


def changed(settings: Settings, **values: Any) -> Settings:
    return Settings(**{**settings.model_dump(exclude_unset=True), **values})


def post(api: ApiServer, body: dict[str, Any]) -> httpx2.Response:
    return api.http.post("/v1/jobs", json=body)


def refused(answer: httpx2.Response, code: str) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["retryable"] is True
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def until(check: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ready(api: ApiServer, part: str) -> tuple[str, str | None]:
    """Return the status of /readyz, and the error code of one of its checks."""
    answer = api.http.get("/readyz").json()
    error = answer[part]["error"]
    return answer["status"], None if error is None else error["code"]


# The broker


def claimable(api: ApiServer) -> int:
    """Return how many jobs a worker of their first stage may claim, whatever the broker does."""
    found = api.services.jobs.counts().stage_runs
    return sum(each.count for each in found if (each.stage, each.state) == ("first", StageRunState.QUEUED))


def test_jobs_are_taken_while_the_broker_refuses_and_rung_for_when_it_is_back(settings: Settings) -> None:
    with FaultProxy(settings.broker_url.get_secret_value()) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with serve(changed(settings, broker_url=url)) as api:
            proxy.set(Fault(refuse=True))
            for _ in range(3):
                assert post(api, TEXT).status_code == 202
            assert claimable(api) == 3
            until(lambda: ready(api, "broker") == ("degraded", "broker_unavailable"))
            proxy.clear()
            until(lambda: ready(api, "broker") == ("ready", None))
            before = api.services.broker.depths()["echo@1.first"]
            assert post(api, TEXT).status_code == 202
            until(lambda: api.services.broker.depths()["echo@1.first"] > before)
            assert claimable(api) == 4


@contextmanager
def full_broker(url: str) -> Iterator[None]:
    with redis.Redis.from_url(url) as client:
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            client.config_set("maxmemory", "0")


def test_jobs_are_taken_while_the_broker_is_full_and_rung_for_when_it_has_room(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    url = settings.broker_url.get_secret_value()
    with serve(settings) as api:
        with full_broker(url):
            for _ in range(3):
                assert post(api, TEXT).status_code == 202
            until(lambda: "workers find work by polling" in caplog.text)
            assert "maxmemory" in caplog.text
            assert api.services.broker.depths()["echo@1.first"] == 0
            until(lambda: ready(api, "broker") == ("degraded", "broker_unavailable"))
        until(lambda: ready(api, "broker") == ("ready", None))
        assert claimable(api) == 3
        assert post(api, TEXT).status_code == 202
        until(lambda: api.services.broker.depths()["echo@1.first"] > 0)


# The database


def test_a_database_that_refuses_is_named_and_the_server_recovers(settings: Settings, postgres_database: str) -> None:
    with FaultProxy(postgres_database) as proxy:
        through = postgres_database.replace(postgres_database.split("@")[1].split("/")[0], f"127.0.0.1:{proxy.port}")
        with serve(changed(settings, database_url=through), gives_up_after_s=2.0) as api:
            first = post(api, TEXT)
            assert first.status_code == 202
            proxy.set(Fault(refuse=True))
            refused(post(api, TEXT), "database_unavailable")
            refused(api.http.get(first.headers["location"]), "database_unavailable")
            until(lambda: ready(api, "database") == ("unavailable", "database_unavailable"))
            assert api.http.get("/healthz").status_code == 200
            proxy.clear()
            until(lambda: post(api, TEXT).status_code == 202)
            assert api.http.get(first.headers["location"]).status_code == 200


@pytest.fixture
def postgres_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database on PostgreSQL."""
    import psycopg

    server: str = request.getfixturevalue("postgres_url")
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = server.rsplit("/", 1)[0] + "/" + name
    migrate(Settings(database_url=url))
    yield url
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


# The object store


def test_after_a_failover_to_a_replica_submits_are_refused_as_retryable(
    settings: Settings, postgres_database: str
) -> None:
    """25006: the database takes no writes for now. Not a bug, so not a 500."""
    settings = changed(settings, database_url=postgres_database)
    migrate(settings)
    name = postgres_database.rpartition("/")[2]
    maintenance = Database(postgres_database.rpartition("/")[0] + "/postgres")

    def set_read_only(*, on: bool) -> None:
        with maintenance.begin() as tx:
            how = "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
            tx.execute(text(f'ALTER DATABASE "{name}" {how}'))
            tx.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :n"), {"n": name})

    with serve(settings, gives_up_after_s=2.0) as api:
        assert post(api, TEXT).status_code == 202
        set_read_only(on=True)
        refused(post(api, TEXT), "database_unavailable")
        until(lambda: ready(api, "database") == ("unavailable", "database_unavailable"))
        set_read_only(on=False)
        assert post(api, TEXT).status_code == 202
        until(lambda: ready(api, "database") == ("ready", None))
    maintenance.close()


@contextmanager
def read_only(api: ApiServer) -> Iterator[None]:
    """The server's database, a file, takes no writes of it."""
    engine = api.services.db._engine

    def set_read_only(connection: Any, record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    event.listen(engine, "connect", set_read_only)
    engine.dispose()
    yield
    event.remove(engine, "connect", set_read_only)


def test_a_database_file_that_is_read_only_is_said(settings: Settings) -> None:
    with serve(settings) as api:
        assert post(api, TEXT).status_code == 202
        with read_only(api):
            refused(post(api, TEXT), "database_unavailable")
            assert api.http.get("/v1/jobs").status_code == 200, "it can be read"
        until(lambda: post(api, TEXT).status_code == 202)


def test_a_database_file_that_is_removed_takes_no_jobs_and_loses_none(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "omni-jobs.sqlite"
    names = ("", "-wal", "-shm")
    with serve(settings) as api:
        first = post(api, TEXT)
        assert first.status_code == 202
        for name in names:
            Path(f"{file}{name}").rename(tmp_path / f"elsewhere{name}")
        refused(post(api, TEXT), "database_unavailable")
        refused(api.http.get(first.headers["location"]), "database_unavailable")
        until(lambda: ready(api, "database") == ("unavailable", "database_unavailable"))
        assert "omni-jobs migrate" in api.http.get("/readyz").json()["error"]["message"]
        assert not file.exists()
        for name in names:
            (tmp_path / f"elsewhere{name}").rename(f"{file}{name}")
        assert post(api, TEXT).status_code == 202
        until(lambda: ready(api, "database") == ("ready", None))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (2,)


def test_who_waits_for_a_job_or_follows_it_outlives_an_outage(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"omni-jobs.sqlite{end}" for end in ("", "-wal", "-shm")]
    with serve(settings) as api, ThreadPoolExecutor(1) as pool, events_of(api, post(api, TEXT)) as events:
        assert next(events).event == "job"
        job = api.http.get("/v1/jobs").json()["jobs"][0]["id"]
        waiting = pool.submit(api.http.get, f"/v1/jobs/{job}?wait=60", timeout=PATIENCE_S)
        until(lambda: len(api.services.watch._watchers) == 2)
        for name in names:
            (tmp_path / name).rename(tmp_path / f"elsewhere-{name}")
        until(lambda: "looking for changes of jobs" in caplog.text)
        for name in names:
            (tmp_path / f"elsewhere-{name}").rename(tmp_path / name)
        until(lambda: api.http.post(f"/v1/jobs/{job}/cancel").status_code == 200)
        assert waiting.result(PATIENCE_S).json()["status"] == "cancelled"
        assert [event.event for event in events][-1] == "job.cancelled"


def test_a_job_is_followed_while_the_database_takes_no_writes(settings: Settings) -> None:
    elsewhere = Database(settings.resolved_database_url)
    with serve(settings) as api:
        first = post(api, TEXT)
        with read_only(api), events_of(api, first) as events:
            assert next(events).event == "job"
            Jobs(elsewhere).cancel(first.json()["id"])
            assert [event.event for event in events][-1] == "job.cancelled"
    elsewhere.close()


@contextmanager
def events_of(api: ApiServer, submit: httpx2.Response) -> Iterator[Iterator[httpx2.ServerSentEvent]]:
    """The events of the job that was submitted, as they come."""
    url, headers = f"{submit.headers['location']}/events", {"Accept": "text/event-stream"}
    with api.http.stream("GET", url, headers=headers, timeout=PATIENCE_S) as answer:
        yield iter(httpx2.EventSource(answer))


def test_an_object_store_that_refuses_is_named_and_concerns_media_only(
    settings: Settings, seaweedfs: SeaweedFS
) -> None:
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        on_s3 = changed(settings, storage_url=f"s3://{seaweedfs.bucket}/{uuid4().hex}", s3_endpoint_url=proxy.url)
        with serve(on_s3) as api:
            assert post(api, sound()).status_code == 202
            proxy.set(Fault(refuse=True))
            refused(post(api, sound()), "storage_unavailable")
            assert post(api, TEXT).status_code == 202
            until(lambda: ready(api, "storage") == ("unavailable", "storage_unavailable"))
            proxy.clear()
            until(lambda: post(api, sound()).status_code == 202)


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 8 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mounted]).returncode:
        pytest.skip("mounting a filesystem is not allowed here")
    yield mounted
    subprocess.run(["umount", "--lazy", mounted], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_full_disk_under_the_objects_is_named(settings: Settings, small_disk: Path) -> None:
    with serve(changed(settings, storage_url=small_disk.as_uri())) as api:
        assert post(api, sound()).status_code == 202
        ballast = fill(small_disk)
        refused(post(api, sound()), "storage_full")
        assert post(api, TEXT).status_code == 202
        until(lambda: ready(api, "storage")[0] == "unavailable")
        ballast.unlink()
        assert post(api, sound()).status_code == 202
        until(lambda: ready(api, "storage") == ("ready", None))


def test_the_reserve_of_the_disk_is_kept(settings: Settings, small_disk: Path) -> None:
    with serve(changed(settings, storage_url=small_disk.as_uri(), min_free_bytes=4 << 20)) as api:
        assert post(api, sound()).status_code == 202
        taken = small_disk / "taken"
        taken.write_bytes(bytes(5 << 20))
        refused(post(api, sound()), "storage_full")
        taken.unlink()
        assert post(api, sound()).status_code == 202


def test_a_full_disk_under_the_database_is_named(settings: Settings, small_disk: Path) -> None:
    on_it = changed(settings, database_url=f"sqlite:///{small_disk / 'jobs.sqlite'}")
    migrate(on_it)
    with serve(on_it) as api:
        first = post(api, TEXT)
        assert first.status_code == 202
        ballast = fill(small_disk)
        large = {"model": "echo", "messages": [{"role": "user", "content": "x" * 1_000_000}]}
        refused(post(api, large), "database_unavailable")
        assert api.http.get(first.headers["location"]).status_code == 200
        ballast.unlink()
        assert post(api, large).status_code == 202


def test_an_object_store_that_takes_no_writes_is_told(settings: Settings, seaweedfs: SeaweedFS) -> None:
    """It answers all that reads: a bucket that is full, or a key that may not write."""
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        on_s3 = changed(settings, storage_url=f"s3://{seaweedfs.bucket}/{uuid4().hex}", s3_endpoint_url=proxy.url)
        with serve(on_s3) as api:
            with proxy.fault(status=403, method=b"PUT"):
                refused(post(api, sound()), "storage_unavailable")
                until(lambda: ready(api, "storage") == ("unavailable", "storage_unavailable"))
            until(lambda: ready(api, "storage") == ("ready", None))
            assert post(api, sound()).status_code == 202
