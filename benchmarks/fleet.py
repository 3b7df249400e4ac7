"""Workers of one stage, more and more of them, on a PostgreSQL behind PgBouncer: what the next one still adds.

    python -m benchmarks.fleet --json FILE [--workers 1 2 4 8] [--seconds 30] [--direct] [--quick]

Each worker is a process of its own with 8 slots, and each stage run takes half a second in which it computes nothing,
as one does that waits for a GPU. So a worker can do 16 jobs/s, and what is missing from that is the control plane's.
For each number of workers there is a backlog for so many seconds. Meanwhile this process claims ten times a second from
a stage of another pipeline, which nobody else works on, and takes the time of each claim. The database's CPU is that of
PostgreSQL's processes; a core is 1. PgBouncer, in transaction mode, comes from Debian (apt-get install pgbouncer);
without it, or with --direct, there is none.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from pydantic import SecretStr
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import text

from benchmarks.costs import cpu_s_with_ended, parent_of, with_children
from benchmarks.echo import LEASE_S, complete, worker
from benchmarks.figures import Figure, figure, report
from benchmarks.paced import STAGE, Workers, write_pipelines
from benchmarks.services import database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, NewJob, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.stack.valkey import Valkey

SLOTS = 8
RUN_S = 0.5
PROBE_EVERY_S = 0.1
START_S = 300.0
NAME, PROBE = "fleet", "probe"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="how many (default 1 2 4 8)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of work for each number (default 30)")
    parser.add_argument("--direct", action="store_true", help="without PgBouncer")
    parser.add_argument("--quick", action="store_true", help="few workers and jobs: whether it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.seconds = [1, 2], 3.0
    pooler = None if arguments.direct else shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if pooler is None and not arguments.direct:
        Console(stderr=True).print("no PgBouncer here (apt-get install pgbouncer): the workers reach PostgreSQL itself")
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-")))
        server = str(opened.enter_context(database("postgresql")))
        with closing(Database(server)) as owner:
            owner.migrate()
        url = server if pooler is None else opened.enter_context(pgbouncer(pooler, server))
        fleet = opened.enter_context(running_fleet(directory, url, server))
        progress = opened.enter_context(Progress(transient=True))
        bar = progress.add_task("", total=len(arguments.workers))
        found: list[Figure] = []
        for count in sorted(arguments.workers):
            progress.update(bar, description=f"{count} workers")
            found += fleet.measured(count, arguments.seconds)
            progress.advance(bar)
        if pooler is not None:
            found.append(fleet.kept_settings())
    report(found, arguments.json)


@contextmanager
def pgbouncer(program: str, server: str) -> Iterator[str]:
    """A context manager that yields the URL of a PgBouncer in transaction mode before this server.

    It refuses to run as root, so then it runs as the server's own user.
    """
    where = urlsplit(server)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="omni-jobs-pgbouncer-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={where.hostname} port={where.port} user={where.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 1000\nlog_connections = 0\n"
            "log_disconnections = 0\n"
        )
        owner = None if os.geteuid() else "postgres" if _is_user("postgres") else "nobody"
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, str(directory / "pgbouncer.ini")],
                user=owner,
                extra_groups=None if owner is None else [],
                stdout=log,
                stderr=log,
            )
        url = urlunsplit(where._replace(netloc=f"{where.username}@127.0.0.1:{port}"))
        try:
            for _ in range(100):
                try:
                    psycopg.connect(url, connect_timeout=2).close()
                except psycopg.OperationalError:
                    if process.poll() is not None:
                        raise SystemExit(f"PgBouncer does not start: {(directory / 'log').read_text()}") from None
                    time.sleep(0.1)
                else:
                    break
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def _is_user(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def running_fleet(directory: Path, url: str, server: str) -> Iterator["Fleet"]:
    """A context manager that yields a fleet without workers: a broker, and the settings of all processes."""
    configs = directory / "stage_configs"
    write_pipelines(configs, [NAME, PROBE], slots=SLOTS, run_s=RUN_S)
    (directory / "valkey").mkdir()
    valkey = Valkey(directory / "valkey")
    with (directory / "valkey.log").open("wb") as log:
        broker = subprocess.Popen(valkey.command(), stdout=log, stderr=log)
    try:
        while not valkey.answers():
            if broker.poll() is not None:
                raise SystemExit("Valkey does not start")
            time.sleep(0.05)
        settings = Settings(
            data_dir=directory / "data",
            database_url=url,
            broker_url=SecretStr(valkey.url),
            stage_configs=configs,
        )
        fleet = Fleet(settings, server, directory / "workers.log")
        try:
            yield fleet
        finally:
            fleet.close()
    finally:
        broker.terminate()
        broker.wait(30)


class Fleet:
    """The workers, and what is asked of them. ``server`` is PostgreSQL's own URL, past the pooler."""

    def __init__(self, settings: Settings, server: str, log: Path) -> None:
        pipelines = load_pipelines(settings.resolved_stage_configs)
        self._queue, probed = pipelines[NAME].queue(STAGE), pipelines[PROBE]
        self._new = {name: admit(parse(_body(name), settings), pipelines, settings) for name in (NAME, PROBE)}
        self._broker = Broker(settings, pipelines)
        self._database = Database(settings.resolved_database_url)
        self._jobs = Jobs(self._database)
        self._sql = psycopg.connect(server, autocommit=True)
        self._server = parent_of(self._sql.info.backend_pid)
        self._workers = Workers(pipelines[NAME], settings, log)
        self._kept: list[bool] = []
        self._jobs.register_worker(worker(probed, STAGE, SLOTS, "prober"), LEASE_S)

    def measured(self, count: int, seconds: float) -> Iterator[Figure]:
        """Yield what ``count`` workers do, of which those that are there already stay."""
        self._start(count)
        jobs = round(count * SLOTS / RUN_S * seconds)
        self._submit(NAME, jobs)
        self._submit(PROBE, round(4 * seconds / PROBE_EVERY_S))
        cpu, begin = self._cpu_s(), time.monotonic()
        for _ in range(count * SLOTS):
            self._broker.ring([self._queue])
        claims = self._claims_until_done()
        wall = time.monotonic() - begin
        cpu = self._cpu_s() - cpu
        name = f"{count} worker{'s' if count > 1 else ''}"
        ideal = count * SLOTS / RUN_S
        yield figure(f"{name}: jobs/s", "jobs/s", [jobs / wall])
        yield figure(f"{name}: jobs/s / what the stage alone would let through", "", [jobs / wall / ideal])
        yield figure(f"{name}: a claim, p50", "ms", [1000 * claims[len(claims) // 2]])
        yield figure(f"{name}: a claim, p99", "ms", [1000 * claims[int(0.99 * len(claims))]])
        yield figure(f"{name}: the database's CPU", "cores", [cpu / wall])
        yield figure(f"{name}: the database's CPU, per job", "ms", [1000 * cpu / jobs])

    def kept_settings(self) -> Figure:
        """Return of how many transactions the session had the settings with which its client had connected."""
        return figure("transactions whose session had the client's settings", "", [sum(self._kept) / len(self._kept)])

    def _start(self, count: int) -> None:
        while (started := len(self._workers.started)) < count:
            self._workers.start(f"fleet-{started}@fleet")
        deadline = time.monotonic() + START_S
        while self._one("SELECT count(*) FROM workers WHERE slot LIKE 'fleet-%'") < count:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._workers.started):
                raise SystemExit(f"a worker does not start; its log ends: {self._workers.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def _submit(self, name: str, count: int) -> None:
        new: list[NewJob] = [replace(self._new[name], job_id=new_job_id()) for _ in range(count)]
        for begin in range(0, count, 500):
            self._jobs.submit_all(new[begin : begin + 500])

    def _claims_until_done(self) -> Sequence[float]:
        """Claim from the other stage until the fleet has ended its jobs; return how long each claim took, in order."""
        took = []
        left = "SELECT EXISTS (SELECT FROM jobs WHERE pipeline = 'fleet' AND finished_at IS NULL)"
        while self._one(left):
            begin = time.perf_counter()
            claims = self._jobs.claim("prober", 1).claims
            took.append(time.perf_counter() - begin)
            complete(self._jobs, "prober", claims)
            shown = self._database.read(lambda tx: tx.execute(text("SHOW enable_seqscan")).scalar_one())
            self._kept.append(shown == "off")
            time.sleep(max(0.0, PROBE_EVERY_S - (time.perf_counter() - begin)))
        return sorted(took)

    def _cpu_s(self) -> float:
        return sum(cpu_s_with_ended(pid) for pid in with_children(self._server))

    def _one(self, query: str) -> float:
        row = self._sql.execute(query).fetchone()
        return float(row[0]) if row is not None else 0.0

    def close(self) -> None:
        """End the workers and the connections."""
        self._workers.close()
        self._sql.close()
        self._database.close()
        self._broker.close()


def _body(name: str) -> dict[str, object]:
    return {"model": name, "messages": [{"role": "user", "content": "Hello"}]}


if __name__ == "__main__":
    main()
