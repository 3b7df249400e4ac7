"""A backlog: what a million jobs that wait cost those that come, those that are read and those that go.

    python -m benchmarks.backlog --json FILE [--small 1000] [--large 1000000] [--runs 7] [--quick]

Two embedded stacks with databases of one kind, one with few jobs waiting and one with many, and
no worker. Both are measured in turns, a part of each run at a time: jobs are submitted and read
over HTTP; then as many are taken from the broker, claimed and completed in this process as a
worker would, 64 on one side, 64 on the other. A p99 is that of one run, a ratio that of the two
runs of one turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from rich.progress import Progress, track
from sqlalchemy import text

from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import get_all, post_all
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.hints import read_hints
from omni_jobs.database.database import Database
from omni_jobs.intake.intake import new_job
from omni_jobs.jobs import Completion, Jobs, NewJob, NewWorker, Retention, SubmitResult, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import AdmittedRequest, admit
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

_AT_ONCE = 64  # jobs in one transaction of the fill, and stage runs in one claim
_PARTS = 8  # of a run; of a quick one it is one
_PER_PART = 256  # submits, reads and jobs claimed; lists are a quarter of it
_CLIENTS = 4
_FIRST, _SECOND = "worker-of-first", "worker-of-second"
_LEASE_S = 100_000.0
_DEADLINE_S = 86_400.0
_ANY_NUMBER = 1 << 30
_ALONE = 2000  # jobs submitted over HTTP, for what the broker holds of each

_WORDS = ("Tell", "me", "why", "a", "quick", "brown", "fox", "would", "ever", "jump", "over", "the", "lazy", "dog")


def main() -> None:
    arguments = _arguments()
    parts, alone = _PARTS, _ALONE
    if arguments.quick:
        arguments.small, arguments.large, arguments.runs, parts, alone = 256, 1024, 1, 1, 64
    kinds = DATABASES if arguments.database == "both" else (arguments.database,)
    found = [
        item
        for kind in kinds
        for item in _of(kind, arguments.small, arguments.large, arguments.runs, parts=parts, alone=alone)
    ]
    report(found, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--small", type=int, default=1000, help="jobs that wait in one stack (default 1000)")
    parser.add_argument("--large", type=int, default=1_000_000, help="… and in the other (default 1000000)")
    parser.add_argument("--runs", type=int, default=7, help="times each, alternating (default 7)")
    parser.add_argument("--database", choices=(*DATABASES, "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run: whether it works")
    return parser.parse_args()


def _of(kind: str, small: int, large: int, runs: int, *, parts: int, alone: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(kind)) for _ in (small, large)]
        few, many = sides
        few.fill(small)
        before, empty = many.memory(), many.stored_bytes()
        rate = many.fill(large)
        hints_bytes = (many.memory() - before) / large
        job_bytes = (many.stored_bytes() - empty) / large
        _measure_part(sides, [{name: [] for name in _MEASURED} for _ in sides])  # warm
        gc.collect()
        gc.freeze()  # what the fill left is not walked within a measurement, as in a worker
        measured = _alternate(kind, sides, runs, parts)
        alone_bytes = many.bytes_of_submits(alone)
    yield figure(f"{kind}: filled, jobs/s", "jobs/s", [rate])
    yield figure(f"{kind}: database, bytes a job", "B", [job_bytes])
    yield figure(f"{kind}: broker, bytes a job, submitted {_AT_ONCE} at a time", "B", [hints_bytes], at_most=100)
    yield figure(
        f"{kind}: broker, bytes a job, submitted over HTTP by {_CLIENTS} clients", "B", [alone_bytes], at_most=100
    )
    yield from _figures(kind, measured, f"{small}", f"{large}")


def _alternate(kind: str, sides: Sequence[_Side], runs: int, parts: int) -> Mapping[str, list[tuple[float, float]]]:
    """Of every run, what each figure was on either side."""
    measured: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with Progress() as progress:
        bar = progress.add_task(f"{kind}: alternating", total=runs * parts)
        for _ in range(runs):
            seconds: list[dict[str, list[float]]] = [{name: [] for name in _MEASURED} for _ in sides]
            for part in range(parts):
                turn = 1 if part % 2 else -1
                _measure_part(sides[::turn], seconds[::turn])
                progress.advance(bar)
            for name, (_, value_of) in _MEASURED.items():
                measured[name].append((value_of(seconds[0][name]), value_of(seconds[1][name])))
    return measured


def _measure_part(sides: Sequence[_Side], seconds: Sequence[dict[str, list[float]]]) -> None:
    """As many jobs come as go; each figure's seconds are added to those there are."""
    for side, its_seconds in zip(sides, seconds, strict=True):
        side.measure_requests(its_seconds)
    # These machines' speed changes within a second: what is compared is done within milliseconds.
    for _ in zip(*(side.work(its) for side, its in zip(sides, seconds, strict=True)), strict=True):
        pass


def _figures(kind: str, measured: Mapping[str, list[tuple[float, float]]], small: str, large: str) -> Iterator[Figure]:
    for name, found in measured.items():
        unit, _ = _MEASURED[name]
        for jobs, values in zip((small, large), zip(*found, strict=True), strict=True):
            yield figure(f"{kind}: {name}, {jobs} jobs", unit, values)
        ratios = [many / few for few, many in found]
        yield figure(f"{kind}: {name}, {large} / {small}", "×", ratios, **_TARGETS.get(name, {}))


def _rate(seconds: Sequence[float]) -> float:
    """Stage runs a second, of claims of _AT_ONCE each."""
    return _AT_ONCE * len(seconds) / sum(seconds)


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))] * 1000


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000


_MEASURED: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "claims": ("stage runs/s", _rate),
    "completions": ("stage runs/s", _rate),
    "a submit's p99": ("ms", _p99),
    "GET /v1/jobs/{id}, p99": ("ms", _p99),
    "GET /v1/jobs, p99": ("ms", _p99),
    "a round of the rescuer": ("ms", _median),
    "a look of the pruner": ("ms", _median),
    "GET /v1/status": ("ms", _median),
    "the count of the backlog": ("ms", _median),
}
_TARGETS: dict[str, dict[str, float]] = {
    "claims": {"at_least": 0.9},
    "a submit's p99": {"at_most": 1.5},
    "GET /v1/jobs/{id}, p99": {"at_most": 1.5},
    "GET /v1/jobs, p99": {"at_most": 1.5},
    "a round of the rescuer": {"at_most": 1.5},
    "a look of the pruner": {"at_most": 1.5},
}


@dataclass
class _Side:
    """A stack without workers, and its database and broker as a worker and the rescuer have them."""

    stack: EmbeddedStack
    db: Database
    jobs: Jobs
    broker: Broker
    server: redis.Redis  # under the broker
    queue: str  # of the first stage
    admitted: AdmittedRequest  # what every job of the fill asks for
    known: list[str] = field(default_factory=list)  # ids of some jobs
    popped: dict[int, int] = field(default_factory=dict)  # hints taken from the broker and not yet claimed
    claimed: set[int] = field(default_factory=set)  # of the first stage: the stack's own rescuer may hint them again

    # The fill

    def fill(self, count: int) -> float:
        """Submit so many jobs as fast as it goes; jobs/s."""
        begin = time.perf_counter()
        for start in track(range(0, count, _AT_ONCE), description=f"filling: {count} jobs"):
            new = self._new_jobs(min(_AT_ONCE, count - start))
            answers = self.jobs.submit_all(new)
            self.broker.publish(
                [hint for answer in answers if isinstance(answer, SubmitResult) for hint in answer.hints]
            )
            if start % (_AT_ONCE * max(1, count // 100_000)) == 0:
                self.known += [job.job_id for job in new]
        seconds = time.perf_counter() - begin
        served = self.admitted.pipeline
        for worker_id, stage in ((_FIRST, "first"), (_SECOND, "second")):
            worker = NewWorker(
                worker_id, worker_id, "echo", stage, "localhost", 1, 2 * _AT_ONCE, served.version, served.digest
            )
            self.jobs.register_worker(worker, _LEASE_S)
        return count / seconds

    def _new_jobs(self, count: int) -> list[NewJob]:
        tenants = [f"tenant-{random.randrange(10)}" for _ in range(count)]  # noqa: S311
        return [new_job(new_job_id(), self.admitted, (), tenant=tenant, expires_in_s=_DEADLINE_S) for tenant in tenants]

    def memory(self) -> int:
        """Bytes that the broker holds."""
        return int(self.server.info("memory")["used_memory"])

    def stored_bytes(self) -> int:
        """Bytes of the database's tables and indexes."""
        if self.db.dialect == "postgresql":
            query = "SELECT pg_database_size(current_database())"
        else:
            query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self.db.read(lambda tx: tx.execute(text(query)).scalar_one()))

    def bytes_of_submits(self, count: int) -> float:
        """Bytes that the broker holds of each of so many jobs submitted over HTTP."""
        there, before = self._messages(), self.memory()
        self._submit(count)
        deadline = time.monotonic() + 30
        while self._hints_of_last(self._messages() - there) < count:
            if time.monotonic() > deadline:
                raise SystemExit("the hints are not in the broker")
            time.sleep(0.02)
        return (self.memory() - before) / count

    def _messages(self) -> int:
        return int(self.server.llen(self.queue))

    def _hints_of_last(self, messages: int) -> int:
        raw: list[bytes] = self.server.lrange(self.queue, 0, messages - 1) if messages else []  # type: ignore[assignment]
        return sum(len(read_hints(message)) for message in raw)

    # What is measured

    def measure_requests(self, seconds: dict[str, list[float]]) -> None:
        seconds["a submit's p99"] += self._submit(_PER_PART)
        seconds["GET /v1/jobs/{id}, p99"] += self._get(
            [f"/v1/jobs/{job_id}" for job_id in random.choices(self.known, k=_PER_PART)]  # noqa: S311
        )
        seconds["GET /v1/jobs, p99"] += self._get(["/v1/jobs"] * (_PER_PART // 4))
        seconds["GET /v1/status"] += self._get(["/v1/status"])
        keep = Retention.of(self.stack.settings)
        for name, call in (
            ("the count of the backlog", self.jobs.backlog),
            ("a round of the rescuer", self.jobs.rescue),
            ("a look of the pruner", lambda: self.jobs.prune(keep)),
        ):
            seconds[name].append(_seconds(call))

    def work(self, seconds: dict[str, list[float]]) -> Iterator[None]:
        """As many jobs as were submitted go through both stages; it pauses after every claim and its completions."""
        second: list[tuple[int, int]] = []
        for batch in _batches(self._pop(_PER_PART)):
            second += self._claim_and_complete(_FIRST, batch, seconds)
            yield
        for batch in _batches(second):
            self._claim_and_complete(_SECOND, batch, seconds)
            yield

    def _submit(self, count: int) -> Sequence[float]:
        answers = post_all(*self._address, "/v1/jobs", [json.dumps(_body()).encode()] * count, clients=_CLIENTS)
        self.known += [json.loads(body)["id"] for body in answers.bodies[::_CLIENTS]]
        return answers.latencies

    def _get(self, paths: Sequence[str]) -> Sequence[float]:
        return get_all(*self._address, paths, clients=min(_CLIENTS, len(paths))).latencies

    @property
    def _address(self) -> tuple[str, int]:
        where = urlsplit(self.stack.url)
        return where.hostname or "", where.port or 0

    def _pop(self, count: int) -> list[tuple[int, int]]:
        """Hints, the oldest first, as a worker takes them."""
        while len(self.popped) < count:
            raw: bytes | None = self.server.rpop(self.queue)  # type: ignore[assignment]
            if raw is None:
                raise SystemExit("the broker has too few hints")
            self.popped.update(hint for hint in read_hints(raw) if hint[0] not in self.claimed)
        taken = [(stage_run_id, self.popped.pop(stage_run_id)) for stage_run_id in list(self.popped)[:count]]
        self.claimed.update(stage_run_id for stage_run_id, _ in taken)
        return taken

    def _claim_and_complete(
        self, worker_id: str, hints: Sequence[tuple[int, int]], seconds: dict[str, list[float]]
    ) -> list[tuple[int, int]]:
        """The hints of the stage after."""
        begin = time.perf_counter()
        claims = self.jobs.claim(worker_id, hints)
        claimed = time.perf_counter()
        outcomes = self.jobs.complete(
            [Completion(claim.stage_run_id, claim.attempt, worker_id, inline_payload=b"payload") for claim in claims]
        )
        seconds["completions"].append(time.perf_counter() - claimed)
        seconds["claims"].append(claimed - begin)
        if len(claims) != len(hints) or not all(outcome.won for outcome in outcomes):
            raise SystemExit(f"{len(claims)} of {len(hints)} stage runs could be claimed")
        return [(hint.stage_run_id, hint.attempt) for outcome in outcomes for hint in outcome.hints]


def _batches(hints: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    return (hints[start : start + _AT_ONCE] for start in range(0, len(hints), _AT_ONCE))


@contextmanager
def _side(kind: str) -> Iterator[_Side]:
    with ExitStack() as held:
        directory = held.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-"))
        url = held.enter_context(database(kind))
        settings = Settings(
            data_dir=Path(directory) / "data",
            database_url=url,
            max_queued_jobs=_ANY_NUMBER,
            max_queued_jobs_per_tenant=_ANY_NUMBER,
            rescue_every_s=60,  # its rounds are measured here
            prune_every_s=3600,
        )
        stack = held.enter_context(EmbeddedStack(settings, pipelines=[]))
        pipelines = load_pipelines(stack.settings.resolved_stage_configs)
        broker = Broker(stack.settings, pipelines)
        held.callback(broker.close)
        db = Database(stack.settings.resolved_database_url)
        held.callback(db.close)
        jobs = Jobs(db, announce_after_s=0)  # so that every round finds as much to announce as it may
        server = held.enter_context(redis.Redis.from_url(stack.settings.broker_url.get_secret_value()))
        admitted = admit(_body(), pipelines, stack.settings)
        yield _Side(stack, db, jobs, broker, server, pipelines["echo"].queue("first"), admitted)


def _body() -> dict[str, Any]:
    """About 60 tokens of chat."""
    content = " ".join(random.choices(_WORDS, k=60))  # noqa: S311
    return {"model": "echo", "messages": [{"role": "user", "content": content}], "metadata": {"customer": "1234567"}}


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
