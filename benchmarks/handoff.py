"""The hand-off: from the end of one stage to the start of the next, with a payload of 1 MB between them.

    python -m benchmarks.handoff --json FILE [--rate 100] [--seconds 20] [--runs 5] [--store local] [--quick]

Jobs of two stages that do nothing arrive one by one, ``--rate`` a second whatever becomes of them,
through PostgreSQL and the embedded stack's workers. All times are the database's:

hand-off    the first stage run's ``finished_at`` to the second's ``started_at``, its claim: the commit
            of the one, a doorbell, and the claim of the other
worked on   the first's ``finished_at`` to the second's ``finished_at``: the hand-off, and then the
            payload read and its digest checked, the runner run, and the end brought to the database
whole job   ``created_at`` to the job's ``finished_at``: the payload made and stored as well

Stores: a local directory, which is synced; S3, a real SeaweedFS on this machine. With S3 a quarter of
the jobs arrive: the service itself takes much of the machine, which it, the database, the broker, the
workers and the load all share. Puts and reads of one payload in S3 are measured by themselves as well.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress, TaskID
from sqlalchemy import text

from benchmarks.figures import Figure, figure, report
from benchmarks.services import database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, NewJob, SubmitResult, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.storage import open_store, payload_key
from tests.services.seaweedfs import running_seaweedfs

PAYLOAD_BYTES = 1_000_000
STORES = {"local": 1.0, "s3": 0.25}
"""By name: which part of the jobs arrive."""

_DRAIN_S = 60.0

_TIMES = text(
    "SELECT f.finished_at AS first_end, s.started_at AS second_start, s.finished_at AS second_end,"
    " j.created_at AS created, j.finished_at AS ended"
    " FROM jobs j JOIN stage_runs f ON f.job_id = j.id AND f.stage = 'first'"
    " JOIN stage_runs s ON s.job_id = j.id AND s.stage = 'second'"
    " WHERE j.id >= :since AND j.state = 'completed' AND f.payload_bytes >= :bytes"
)
_UNFINISHED = text("SELECT 1 FROM jobs WHERE state IN ('queued', 'in_progress') LIMIT 1")


@dataclass(frozen=True)
class Waits:
    """Of each job of one run, sorted, in ms."""

    handoff: Sequence[float]
    worked_on: Sequence[float]
    whole: Sequence[float]


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.rate, arguments.seconds, arguments.runs = 20.0, 1.0, 1
    found: list[Figure] = []
    try:
        for store in arguments.store or STORES:
            found += _of(store, arguments.rate * STORES[store], arguments.seconds, arguments.runs)
            if store == "s3":
                found += _puts_and_reads(3 if arguments.quick else 100)
    finally:
        report(found, arguments.json)  # what was measured before a store that is too slow stays


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rate", type=float, default=100.0, help="jobs that arrive in a second (default 100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (default 20)")
    parser.add_argument("--runs", type=int, default=5, help="of each store (default 5)")
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run: whether it works")
    return parser.parse_args()


def _of(store: str, rate: float, seconds: float, runs: int) -> Iterator[Figure]:
    with ExitStack() as opened, Progress() as progress:
        arrivals = opened.enter_context(_arrivals(store))
        bar = progress.add_task(store, total=(runs + 0.25) * seconds)
        arrivals.of(rate, seconds / 4, progress, bar)  # warm
        waits = [arrivals.of(rate, seconds, progress, bar) for _ in range(runs)]
    each = {
        "hand-off": [run.handoff for run in waits],
        "worked on": [run.worked_on for run in waits],
        "whole job": [run.whole for run in waits],
    }
    for name, measured in each.items():
        is_target = name == "hand-off" and store == "local"
        for percent, target in ((50, 8.0), (99, 40.0)):
            values = [_percentile(of_run, percent) for of_run in measured]
            yield figure(f"{store}: {name}, p{percent}", "ms", values, at_most=target if is_target else None)


def _puts_and_reads(rounds: int) -> list[Figure]:
    """Return the times of single puts and reads of a payload in S3, in ms."""
    payload = os.urandom(PAYLOAD_BYTES)
    puts: list[float] = []
    reads: list[float] = []
    with ExitStack() as opened:
        store = open_store(_stored_in("s3", Settings(), opened))
        for number in range(rounds + 3):
            begin = time.perf_counter()
            ref = store.put(payload_key(f"job-{number}", "first", 1), [payload])
            between = time.perf_counter()
            store.read(ref, max_bytes=PAYLOAD_BYTES)
            end = time.perf_counter()
            if number >= 3:  # the first rounds warm up
                puts.append((between - begin) * 1000)
                reads.append((end - between) * 1000)
    return [figure("s3: a put", "ms", puts), figure("s3: a read", "ms", reads)]


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Arrivals:
    """Submits jobs at a steady rate, each in a transaction of its own, and reads what became of them."""

    def __init__(self, jobs: Jobs, broker: Broker, db: Database, admitted: NewJob) -> None:
        self._jobs = jobs
        self._broker = broker
        self._db = db
        self._admitted = admitted

    def of(self, rate: float, seconds: float, progress: Progress, bar: TaskID) -> Waits:
        """One run, to the end of its last job."""
        count = max(1, round(rate * seconds))
        jobs = [replace(self._admitted, job_id=new_job_id()) for _ in range(count)]
        begin = time.perf_counter()
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            self._submit(job)
        progress.advance(bar, seconds)
        late = time.perf_counter() - begin - seconds
        if late > 0.05 * seconds + 0.5:
            raise SystemExit(f"the load is {late:.1f} s late: {rate:g} jobs/s are too many for this machine")
        self._wait_until_done()
        rows = self._db.read(lambda tx: list(tx.execute(_TIMES, {"since": jobs[0].job_id, "bytes": PAYLOAD_BYTES})))
        if len(rows) != count:
            raise SystemExit(f"{count - len(rows)} of {count} jobs are not completed")
        return Waits(
            handoff=sorted((row.second_start - row.first_end) * 1000 for row in rows),
            worked_on=sorted((row.second_end - row.first_end) * 1000 for row in rows),
            whole=sorted((row.ended - row.created) * 1000 for row in rows),
        )

    def _submit(self, job: NewJob) -> None:
        [answer] = self._jobs.submit_all([job])
        if not isinstance(answer, SubmitResult):
            raise SystemExit(f"a job is refused: {answer}")
        self._broker.ring(answer.queues)

    def _wait_until_done(self) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while self._db.read(lambda tx: tx.execute(_UNFINISHED).first()) is not None:
            if time.monotonic() > deadline:
                raise SystemExit("not done in time")
            time.sleep(0.1)


@contextmanager
def _arrivals(store: str) -> Iterator[Arrivals]:
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-")))
        settings = Settings(data_dir=directory / "data", database_url=opened.enter_context(database("postgresql")))
        settings = _stored_in(store, settings, opened)
        stack = opened.enter_context(EmbeddedStack(settings, pipelines=["echo"]))
        db = Database(stack.settings.resolved_database_url)
        opened.callback(db.close)
        pipelines = load_pipelines(stack.settings.resolved_stage_configs)
        broker = Broker(stack.settings, pipelines)
        opened.callback(broker.close)
        body = {
            "model": "echo",
            "messages": [{"role": "user", "content": "Hello"}],
            "stages": {"first": {"payload_bytes": PAYLOAD_BYTES}},
        }
        yield Arrivals(Jobs(db), broker, db, admit(parse(body, stack.settings), pipelines, stack.settings))


def _stored_in(store: str, settings: Settings, opened: ExitStack) -> Settings:
    """The settings with this store, which runs until ``opened`` closes."""
    if store == "local":
        return settings
    service = opened.enter_context(running_seaweedfs())
    return settings.model_copy(
        update={"storage_url": f"s3://{service.bucket}/handoff", "s3_endpoint_url": service.endpoint_url}
    )


if __name__ == "__main__":
    main()
