"""What a job costs each part of the system: the figures that a fleet is reckoned from (docs/scaling.md).

    python -m benchmarks.costs --json FILE [--jobs 5000] [--rate 20] [--seconds 20] [--quick]

Two-stage echo jobs through PostgreSQL, submitted one by one over HTTP and read once when they have
ended. Under load, as fast as 32 clients go, groups share transactions; in a trickle every job has
its own. CPU is user and system time of each process, for the server that of all its processes.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import redis
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import get_all, post_all
from benchmarks.services import database
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

_CLIENTS = 32
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BODY = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "word " * 60}]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=5000, help="under load (default 5000)")
    parser.add_argument("--rate", type=float, default=20.0, help="jobs a second of the trickle (default 20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the trickle (default 20)")
    parser.add_argument("--quick", action="store_true", help="few jobs: whether it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.jobs, arguments.seconds = 200, 2.0
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database("postgresql") as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url)
        with EmbeddedStack(settings, pipelines=["echo"]) as stack, Progress() as progress:
            system = System(stack)
            bar = progress.add_task("warming", total=3)
            system.load(min(arguments.jobs, 500))
            progress.update(bar, description="under load", advance=1)
            under_load = system.costs_of(lambda: system.load(arguments.jobs))
            progress.update(bar, description="a trickle", advance=1)
            trickle = system.costs_of(lambda: system.trickle(arguments.rate, arguments.seconds))
            progress.update(bar, advance=1)
            found = [*_figures("under load", under_load), *_figures("a trickle", trickle)]
    report(found, arguments.json)


@dataclass(frozen=True)
class Totals:
    """Since the start of each part."""

    cpu_s: dict[str, float]
    transactions: float
    wal_bytes: float
    database_bytes: float
    commands: float


class System:
    """The stack, what it is asked to do, and what that took."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self._stack = stack
        where = urlsplit(stack.url)
        self._host, self._port = where.hostname or "", where.port or 0
        self._sql = psycopg.connect(stack.settings.resolved_database_url, autocommit=True)
        self._redis = redis.Redis.from_url(stack.settings.broker_url.get_secret_value())
        self._server = parent_of(self._sql.info.backend_pid)

    def load(self, jobs: int) -> int:
        """So many at once, to the end of the last one."""
        answers = post_all(self._host, self._port, "/v1/jobs", [_BODY] * jobs, clients=_CLIENTS)
        self._read_when_done([json.loads(body)["id"] for body in answers.bodies])
        return jobs

    def trickle(self, rate: float, seconds: float) -> int:
        """One by one, each alone."""
        jobs = round(rate * seconds)
        begin = time.perf_counter()
        ids = []
        for number in range(jobs):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            answers = post_all(self._host, self._port, "/v1/jobs", [_BODY], clients=1)
            ids.append(json.loads(answers.bodies[0])["id"])
        self._read_when_done(ids)
        return jobs

    def _read_when_done(self, ids: list[str]) -> None:
        while self._one("SELECT count(*) FROM jobs WHERE finished_at IS NULL"):
            time.sleep(0.05)
        get_all(self._host, self._port, [f"/v1/jobs/{job_id}" for job_id in ids], clients=_CLIENTS)

    def costs_of(self, work: Callable[[], int]) -> dict[str, float]:
        """Per job, by name; ``work`` gives how many jobs it did."""
        before = self._totals()
        jobs = work()
        after = self._totals()
        costs = {f"CPU, {name}": (after.cpu_s[name] - before.cpu_s[name]) * 1000 / jobs for name in before.cpu_s}
        costs["transactions"] = (after.transactions - before.transactions) / jobs
        costs["bytes of WAL"] = (after.wal_bytes - before.wal_bytes) / jobs
        costs["bytes in the database"] = (after.database_bytes - before.database_bytes) / jobs
        costs["commands to the broker"] = (after.commands - before.commands) / jobs
        return costs

    def _totals(self) -> Totals:
        cpu_s = {child.name: cpu_s_with_ended(child.pid or 0) for child in self._stack.children()}
        cpu_s["PostgreSQL"] = sum(cpu_s_with_ended(pid) for pid in with_children(self._server))
        return Totals(
            cpu_s=cpu_s,
            transactions=self._one("SELECT sum(xact_commit) FROM pg_stat_database"),
            wal_bytes=self._one("SELECT pg_current_wal_insert_lsn() - '0/0'"),
            database_bytes=self._one("SELECT pg_database_size(current_database())"),
            commands=float(self._redis.info("stats")["total_commands_processed"]),
        )

    def _one(self, query: str) -> float:
        row = self._sql.execute(query).fetchone()
        return float(row[0]) if row is not None else 0.0


def _figures(load: str, costs: dict[str, float]) -> Iterator[Figure]:
    for name, cost in costs.items():
        if not cost:  # less than a tick of the clock that counts CPU time
            continue
        unit = "ms" if name.startswith("CPU") else "B" if name.startswith("bytes") else "per job"
        yield figure(f"{load}: {name}", unit, [cost])


def cpu_s_with_ended(pid: int) -> float:
    """User and system time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def with_children(parent: int) -> Iterator[int]:
    yield parent
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if parent_of(int(stat.parent.name)) == parent:
                yield int(stat.parent.name)
        except FileNotFoundError:
            continue  # ended meanwhile


if __name__ == "__main__":
    main()
