"""Fairness: how soon a small tenant's job, a tenant's share and a high job come before what waits already.

    python -m benchmarks.fairness --json FILE [--runs 3] [--database sqlite] [--quick]

One behind many, weights and many tenants: a worker of 64 slots for each stage, in this process, claims a
batch and completes it, one after the other. What is counted are batches and stage runs, not seconds, so the
machine's speed does not matter.

A flushed broker and high jobs: the embedded stack with its workers. All times are the database's.
High jobs of a tenant arrive one by one, in turns at an idle stack and while its low jobs keep it busy. Stages of 64
slots are held by low jobs of 1 to 3 s, once with 8 slots kept for high jobs and once with none. Stages of 512 slots,
of which 8 are kept, are held by the same, and by jobs that do nothing, which keep the machine busy.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeVar

import redis
import yaml
from rich.progress import track
from sqlalchemy import Connection, TextClause, bindparam, text

from benchmarks.echo import LEASE_S, EchoJobs, complete, empty_database, worker
from benchmarks.figures import Figure, figure, report
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Claim, Jobs, NewJob, SubmitResult
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

T = TypeVar("T")

_SLOTS = 64  # of the worker that claims here
_MANY_SLOTS = 512  # of the workers of the stack
_AT_ONCE = 256  # jobs in one transaction of a submit
_LIMIT_S = 300.0
_NOTHING = {"that do nothing": (0.0,)}
_SECONDS = {"of 1 to 3 s": tuple(1 + number / 40 for number in range(81))}
"""By kind of low jobs: the seconds that they take in each stage, of which slots become free one by one."""
_PARTS = 4  # of the high jobs of a run; before each the low jobs are replenished
_PAUSE_S = (0.01, 0.06)  # between two high jobs; not in step with any poll

_TENANT = text("INSERT INTO tenants (name, weight, created_at) VALUES (:name, :weight, 0)")
_WAITS = text(
    "SELECT run.started_at - job.created_at FROM jobs AS job JOIN stage_runs AS run ON run.job_id = job.id"
    " WHERE job.id IN :ids AND run.stage = 'first'"
).bindparams(bindparam("ids", expanding=True))
_WAITING = text(
    "SELECT count(*) FROM stage_runs AS run JOIN jobs AS job ON job.id = run.job_id"
    " WHERE job.tenant LIKE :tenants AND run.stage = 'first' AND run.state = 'queued' AND run.started_at IS NULL"
)
_STARTED_BESIDE = text(  # from the submit of the first of these jobs to the start of the last one
    "WITH small AS (SELECT job.created_at, run.started_at FROM jobs AS job JOIN stage_runs AS run"
    "               ON run.job_id = job.id AND run.stage = 'first' WHERE job.tenant LIKE 'small-%')"
    " SELECT count(*) FROM stage_runs WHERE stage = 'first'"
    " AND started_at > (SELECT min(created_at) FROM small) AND started_at <= (SELECT max(started_at) FROM small)"
)
_DROP = (  # what waits, so that the next side begins; a job whose first stage run was just claimed goes on
    text("UPDATE stage_runs SET state = 'cancelled' WHERE stage = 'first' AND state = 'queued'"),
    text(
        "UPDATE stage_runs SET state = 'cancelled' WHERE state = 'pending'"
        " AND job_id IN (SELECT job_id FROM stage_runs WHERE stage = 'first' AND state = 'cancelled')"
    ),
    text(
        "UPDATE jobs SET state = 'cancelled', finished_at = created_at WHERE state IN ('queued', 'in_progress')"
        " AND id IN (SELECT job_id FROM stage_runs WHERE stage = 'first' AND state = 'cancelled')"
    ),
)
_UNFINISHED = text("SELECT id FROM jobs WHERE state IN ('queued', 'in_progress', 'cancelling')")


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run has."""

    runs: int
    trials: int = 200
    many: int = 10_000  # jobs of the big tenant
    shared: int = 4000  # stage runs by weight
    tenants: int = 1000
    low: int = 50_000
    stacks: Sequence[tuple[int, int]] = ((64, 8), (64, 0), (_MANY_SLOTS, 8))  # slots, and how many of them are kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--runs", type=int, default=3, help="of each part but the first (default 3)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs: whether it works")
    arguments = parser.parse_args()
    stacks = ((64, 8), (_MANY_SLOTS, 8))
    quick = Sizes(runs=1, trials=10, many=500, shared=400, tenants=100, low=500, stacks=stacks)
    sizes = quick if arguments.quick else Sizes(runs=arguments.runs)
    found: list[Figure] = []
    try:
        for kind in arguments.database or DATABASES:
            for part in (_one_behind_many, _weights, _many_tenants, _on_the_stack):
                found += part(kind, sizes)
    finally:
        report(found, arguments.json)  # what was measured before a part that fails stays


# Counted: one worker claims here.


class _Line:
    """What waits for the first stage in a database, and the worker that takes it batch by batch."""

    def __init__(self, db: Database) -> None:
        self.jobs = Jobs(db)
        self._db = db
        self._echo = EchoJobs(Settings())
        for stage in ("first", "second"):
            self.jobs.register_worker(worker(self._echo.pipeline, stage, _SLOTS, f"worker-of-{stage}"), LEASE_S)

    def add_tenant(self, name: str, weight: float) -> None:
        self._db.run(lambda tx: tx.execute(_TENANT, {"name": name, "weight": weight}))

    def submit(self, tenant: str, number: int = 1) -> list[str]:
        """Submit jobs of a tenant, and return their ids."""
        return self._submit(self._echo.new(number, tenant))

    def submit_one_each(self, tenants: Sequence[str]) -> list[str]:
        """Submit a job of each of these tenants, and return their ids."""
        return self._submit([job for tenant in tenants for job in self._echo.new(1, tenant)])

    def _submit(self, new: Sequence[NewJob]) -> list[str]:
        for some in _batches(new):
            self.jobs.submit_all(some)
        return [job.job_id for job in new]

    def batch(self) -> list[str]:
        """Claim and complete a batch, and return the ids of its jobs in the order of their turns.

        The second stage completes it as well, because what waits there would hold back the pipeline's virtual time.
        """
        claims = self._take("first")
        self._take("second")
        return [claim.job_id for claim in claims]

    def _take(self, stage: str) -> Sequence[Claim]:
        claims = self.jobs.claim(f"worker-of-{stage}", _SLOTS).claims
        complete(self.jobs, f"worker-of-{stage}", claims)
        return claims

    def batches_until(self, job_ids: Sequence[str]) -> int:
        """Take batches until all of these jobs have started, and return their number."""
        waiting = set(job_ids)
        number = 0
        while waiting:
            taken = self.batch()
            if not taken:
                raise SystemExit("nothing waits any more, and some jobs were never claimed")
            waiting.difference_update(taken)
            number += 1
        return number


@contextmanager
def _line(kind: str) -> Iterator[_Line]:
    with empty_database(kind) as db:
        yield _Line(db)


def _one_behind_many(kind: str, sizes: Sizes) -> Iterator[Figure]:
    batches = []
    with _line(kind) as line:
        line.submit("a", sizes.many)
        for _ in track(range(sizes.trials), description=f"{kind}: one behind many"):
            before = random.randrange(3)  # noqa: S311
            for _ in range(before):
                line.batch()
            batches.append(line.batches_until(line.submit("b")))
            line.submit("a", _SLOTS * (before + batches[-1]))
    p99 = _percentile(batches, 0.99)
    yield figure(f"{kind}: batches until a job of B behind {sizes.many} of A, p99", "batches", [p99], at_most=2)
    yield figure(f"{kind}: batches until a job of B behind {sizes.many} of A", "batches", batches)


def _weights(kind: str, sizes: Sizes) -> Iterator[Figure]:
    ratios = []
    with _line(kind) as line:
        line.add_tenant("a", 3.0)
        line.add_tenant("b", 1.0)
        for _ in track(range(sizes.runs), description=f"{kind}: weights"):
            of_a: set[str] = set()
            left = {"a": sizes.shared, "b": sizes.shared}
            while tenants := [tenant for tenant, jobs in left.items() if jobs]:
                tenant = random.choice(tenants)  # noqa: S311
                some = min(left[tenant], random.randint(1, _AT_ONCE))  # noqa: S311
                left[tenant] -= some
                ids = line.submit(tenant, some)
                of_a.update(ids if tenant == "a" else ())
            taken: list[str] = []
            while len(taken) < sizes.shared:
                taken += line.batch()
            ours = sum(job_id in of_a for job_id in taken[: sizes.shared])
            ratios.append(ours / (sizes.shared - ours))
            while line.batch():
                pass  # the next run begins with nothing queued
    yield figure(f"{kind}: weights 3:1, shares of {sizes.shared} stage runs, lowest", "×", [min(ratios)], at_least=2.85)
    yield figure(f"{kind}: weights 3:1, shares of {sizes.shared} stage runs, highest", "×", [max(ratios)], at_most=3.15)


def _many_tenants(kind: str, sizes: Sizes) -> Iterator[Figure]:
    batches = []
    with _line(kind) as line:
        line.submit("big", sizes.many)
        for run in track(range(sizes.runs), description=f"{kind}: many tenants"):
            ids = line.submit_one_each([f"small-{run}-{number}" for number in range(sizes.tenants)])
            batches.append(line.batches_until(ids))
            line.submit("big", _SLOTS * batches[-1])
    one_round = ceil((sizes.tenants + 1) / _SLOTS)
    name = f"{kind}: batches until a job of each of {sizes.tenants} tenants behind {sizes.many}"
    yield figure(name, "batches", batches, at_most=one_round)


# Through the whole stack.


class _Stack:
    """The embedded stack, and its database and broker as a server has them."""

    def __init__(self, stack: EmbeddedStack, db: Database, broker: Broker) -> None:
        self.db = db
        self.jobs = Jobs(db)
        self.echo = EchoJobs(stack.settings)
        self._url = stack.settings.broker_url.get_secret_value()
        self._broker = broker

    def submit(self, new: Sequence[NewJob]) -> None:
        for some in _batches(new):
            answers = self.jobs.submit_all(some)
            self._broker.ring({name for each in answers if isinstance(each, SubmitResult) for name in each.queues})

    def flush_broker(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            client.flushall()

    def waiting(self, tenants: str) -> int:
        """Jobs of the tenants like this pattern that have not started."""
        return int(self.db.read(lambda tx: tx.execute(_WAITING, {"tenants": tenants}).scalar_one()))

    def fill(self, number: int, requests: Sequence[EchoJobs]) -> None:
        """Submit low jobs of these requests until about ``number`` wait; some start meanwhile."""
        of_each = ceil(max(0, number - self.waiting("a")) / len(requests))
        new = [job for each in requests for job in each.new(of_each, "a", Priority.LOW)]
        random.shuffle(new)
        self.submit(new)

    def drop(self) -> None:
        """Cancel what waits, in SQL alone because there is much, and what runs, and wait until nothing runs."""
        for statement in _DROP:
            self.db.run(partial(_execute, statement))  # each in a transaction of its own, so that none waits long
        for job_id in self.db.read(lambda tx: tx.execute(_UNFINISHED).scalars().all()):
            self.jobs.cancel(job_id)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until every job has ended."""
        _wait_for(lambda: self.db.read(lambda tx: tx.execute(_UNFINISHED).first()) is None or None)

    def waits_of_high(self, number: int) -> list[float]:
        """Submit ``number`` high jobs, one by one, and return the ms from each one's submit to its start."""
        ids: list[str] = []
        for _ in track(range(number), description="high jobs", transient=True):
            time.sleep(random.uniform(*_PAUSE_S))  # noqa: S311
            new = self.echo.new(1, "a", Priority.HIGH)
            self.submit(new)
            ids.append(new[0].job_id)
        return _wait_for(partial(self._waits, ids))

    def _waits(self, ids: Sequence[str]) -> list[float] | None:
        waits = [seconds for (seconds,) in self.db.read(lambda tx: tx.execute(_WAITS, {"ids": ids}).all())]
        return None if None in waits else [seconds * 1000 for seconds in waits]


@contextmanager
def _stack(kind: str, slots: int, kept: int) -> Iterator[_Stack]:
    """Yield a stack whose stages have ``slots``, ``kept`` of them for high jobs."""
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        config = yaml.safe_load((Settings().resolved_stage_configs / "echo.yaml").read_text(encoding="utf-8"))
        for stage in config["stages"].values():
            stage |= {"slots": slots, "slots_for_high": kept}
        configs = Path(directory) / "stage_configs"
        configs.mkdir()
        (configs / "echo.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        settings = Settings(data_dir=Path(directory) / "data", database_url=url, stage_configs=configs)
        with EmbeddedStack(settings, pipelines=["echo"]) as stack:
            db = Database(stack.settings.resolved_database_url)
            broker = Broker(stack.settings, load_pipelines(stack.settings.resolved_stage_configs))
            try:
                yield _Stack(stack, db, broker)
            finally:
                broker.close()
                db.close()


def _execute(statement: TextClause, tx: Connection) -> None:
    if tx.dialect.name == "postgresql":  # the platform's settings are for statements that find few rows
        tx.execute(text("SET LOCAL enable_seqscan = on"))
        tx.execute(text("SET LOCAL statement_timeout = 0"))
    tx.execute(statement)


def _on_the_stack(kind: str, sizes: Sizes) -> Iterator[Figure]:
    for slots, kept in sizes.stacks:
        with _stack(kind, slots, kept) as stack:
            of_low = _SECONDS | _NOTHING if slots == _MANY_SLOTS else _SECONDS
            yield from _high_jobs(f"{kind}, {slots} slots, {kept} kept", sizes, stack, of_low)
            if slots == _MANY_SLOTS:
                yield _flushed_broker(kind, sizes, stack)


def _high_jobs(of: str, sizes: Sizes, stack: _Stack, of_low: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    low = {name: [EchoJobs(Settings(), delay_s) for delay_s in seconds] for name, seconds in of_low.items()}
    waits: dict[str, list[list[float]]] = {name: [] for name in ("idle", *low)}
    stack.waits_of_high(10)  # warm
    for _ in range(sizes.runs):
        for name, found in waits.items():
            found.append([])
            for _ in range(_PARTS):
                if name != "idle":
                    stack.fill(sizes.low, low[name])
                found[-1] += stack.waits_of_high(ceil(sizes.trials / _PARTS))
            stack.drop()
    for name, found in waits.items():
        beside = name if name == "idle" else f"before {sizes.low} low ones {name}"
        for share, percent in ((0.5, "p50"), (0.99, "p99")):
            values = [_percentile(each, share) for each in found]
            yield figure(f"{of}: high, submit → started, {beside}, {percent}", "ms", values)
        if name != "idle":
            pairs = zip(waits["idle"], found, strict=True)
            ratios = [_percentile(late, 0.99) / _percentile(soon, 0.99) for soon, late in pairs]
            yield figure(f"{of}: high, submit → started, p99, {beside} / idle", "×", ratios, at_most=1.5)


def _flushed_broker(kind: str, sizes: Sizes, stack: _Stack) -> Figure:
    """Return how many stage runs start until a job of each small tenant has, when all doorbells are lost meanwhile."""
    stack.submit(stack.echo.new(sizes.many, "big"))
    stack.flush_broker()
    stack.submit([job for number in range(sizes.tenants) for job in stack.echo.new(1, f"small-{number}")])
    stack.flush_broker()
    _wait_for(lambda: stack.waiting("small-%") == 0 or None)
    started = stack.db.read(lambda tx: tx.execute(_STARTED_BESIDE).scalar_one())
    in_flight = 2 * _MANY_SLOTS  # a claim under way at the submit, and one that ends with the last of them
    name = f"{kind}: flushed broker: stage runs until a job of each of {sizes.tenants} tenants"
    return figure(name, "stage runs", [started], at_most=sizes.tenants + 1 + in_flight)


def _wait_for(look: Callable[[], T | None]) -> T:
    """Return what ``look`` returns once that is not None. Raises SystemExit after _LIMIT_S."""
    deadline = time.monotonic() + _LIMIT_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise SystemExit("not done in time")
        time.sleep(0.1)
    return found


def _batches(new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    return (new[start : start + _AT_ONCE] for start in range(0, len(new), _AT_ONCE))


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


if __name__ == "__main__":
    main()
