"""Two-stage jobs that do nothing, from the first submit to the last one's end, beside other queues.

    python -m benchmarks.control_plane --json FILE [--jobs 20000] [--runs 5] [--quick]

Each side has one worker process per stage and one process that submits, by its library's own
call. Ours keeps every job in SQL, with its stages, its attempts and its result; a plain Celery
chain and a dramatiq pipeline keep nothing. The sides take turns in one run.
"""

import argparse
import gc
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import redis
from rich.progress import Progress
from sqlalchemy import Connection, text

from benchmarks.figures import Figure, figure, report
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, NewJob, SubmitResult, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.services.valkey import start_valkey

ROOT = Path(__file__).parents[1]
_AT_ONCE = 256  # jobs in one transaction of a submit
_LIMIT_S = 900.0

_ENDED = text("SELECT finished_at FROM jobs WHERE id = :id")
_UNFINISHED = text("SELECT 1 FROM jobs WHERE state IN ('queued', 'in_progress', 'cancelling') LIMIT 1")

Side = Callable[[int], float]
"""Runs a number of jobs; returns the seconds from the first submit to the end of the last."""


def main() -> None:
    arguments = _arguments()
    jobs, runs = (300, 1) if arguments.quick else (arguments.jobs, arguments.runs)
    databases = arguments.database or list(DATABASES)
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for kind in databases:
            sides[kind] = stack.enter_context(ours(kind))
        broker = stack.enter_context(_valkey())
        for name in ("celery_chain", "dramatiq_pipeline"):
            sides[name] = stack.enter_context(peer(name, broker))
        rates = _alternate(sides, jobs, runs)
    report(list(_figures(rates, databases)), arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=20_000, help="of each side and run (default 20000)")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run: whether it works")
    return parser.parse_args()


def _alternate(sides: dict[str, Side], jobs: int, runs: int) -> dict[str, list[float]]:
    """Jobs per second of each side; a first round of few jobs warms all."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with Progress() as progress:
        bar = progress.add_task("alternating", total=(runs + 1) * len(sides))
        for turn in range(runs + 1):
            for name, side in sides.items():
                count = jobs if turn else min(jobs, 500)
                seconds = side(count)
                if turn:
                    rates[name].append(count / seconds)
                progress.advance(bar)
    return rates


def _figures(rates: dict[str, list[float]], databases: Sequence[str]) -> Iterator[Figure]:
    for name, found in rates.items():
        yield figure(f"{name}, jobs/s", "jobs/s", found)
    for kind, over_celery, over_dramatiq in (("sqlite", 10.0, 2.5), ("postgresql", 8.0, 2.0)):
        if kind in databases:
            for peer_name, target in (("celery_chain", over_celery), ("dramatiq_pipeline", over_dramatiq)):
                ratios = [one / other for one, other in zip(rates[kind], rates[peer_name], strict=True)]
                yield figure(f"{kind} / {peer_name}", "×", ratios, at_least=target)


# Ours


@contextmanager
def ours(kind: str) -> Iterator[Side]:
    """The embedded stack's workers; jobs are submitted in this process."""
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url)
        with EmbeddedStack(settings, pipelines=["echo"]) as stack:
            db = Database(stack.settings.resolved_database_url)
            broker = Broker(stack.settings, load_pipelines(stack.settings.resolved_stage_configs))
            try:
                yield lambda count: _through(Jobs(db), broker, db, stack.settings, count)
            finally:
                broker.close()
                db.close()


def _through(jobs: Jobs, broker: Broker, db: Database, settings: Settings, count: int) -> float:
    new = new_jobs(settings, count)
    freeze()
    begin = time.perf_counter()
    for start in range(0, count, _AT_ONCE):
        answers = jobs.submit_all(new[start : start + _AT_ONCE])
        broker.ring({queue for answer in answers if isinstance(answer, SubmitResult) for queue in answer.queues})
    wait_until(lambda: is_done(db, new[-1].job_id))
    return time.perf_counter() - begin


def new_jobs(settings: Settings, count: int) -> list[NewJob]:
    pipelines = load_pipelines(settings.resolved_stage_configs)
    body = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
    admitted = admit(parse(body, settings), pipelines, settings)
    return [replace(admitted, job_id=new_job_id()) for _ in range(count)]


def is_done(db: Database, last: str) -> bool:
    """Whether every job has ended. All are looked at when the last one has: the look would slow them down."""

    def look(tx: Connection) -> bool:
        if tx.execute(_ENDED, {"id": last}).scalar_one() is None:
            return False
        return tx.execute(_UNFINISHED).first() is None

    return db.read(look)


# Peers


@contextmanager
def peer(name: str, broker: str) -> Iterator[Side]:
    os.environ["PEER_BROKER"] = broker
    module = __import__(f"benchmarks.peers.{name}", fromlist=["commands"])
    out = subprocess.DEVNULL
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) for command in module.commands()]
    try:
        yield lambda count: _through_peer(module, broker, count)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(60)


def _through_peer(module: ModuleType, broker: str, count: int) -> float:
    with redis.Redis.from_url(broker) as client:
        client.set(module.DONE, 0)
        freeze()
        begin = time.perf_counter()
        module.submit(count)
        wait_until(lambda: int(client.get(module.DONE) or 0) >= count)
        return time.perf_counter() - begin


@contextmanager
def _valkey() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        server = start_valkey(Path(directory))
        try:
            yield f"redis://127.0.0.1:{server.port}/0"
        finally:
            server.stop()


def freeze() -> None:
    """The collector is to look at what a side makes, not at what was there before, as in the API and the workers."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("not done in time")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
