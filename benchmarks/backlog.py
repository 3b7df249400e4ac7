"""A backlog: what a million jobs that wait cost those that come, those that are read and those that go.

    python -m benchmarks.backlog --json FILE [--small 1000] [--large 1000000] [--runs 7] [--quick]

Two embedded stacks with databases of one kind, one with few jobs waiting and one with many, and
no worker. Both are measured in turns, a part of each run at a time: jobs are submitted and read
over HTTP, and on each side others are claimed by 16 workers at once, which are processes. Then as
many jobs as were submitted are claimed by their turns and completed by one worker in this process,
64 on one side, 64 on the other, with no requests in between. A p99 is that of one run, a ratio
that of the two runs of one turn.
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
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from rich.progress import Progress, track
from sqlalchemy import text

from benchmarks.claimers import Claimers
from benchmarks.echo import LEASE_S, complete, worker
from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import get_all, post_all
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, NewJob, Retention, SubmitResult, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

_AT_ONCE = 64  # jobs in one transaction of the fill, and stage runs in one claim
_PARTS = 8  # of a run; of a quick one it is one
_PER_PART = 256  # submits, reads and jobs claimed; lists are a quarter of it
_CLIENTS = 4
_FIRST, _SECOND = "worker-of-first", "worker-of-second"
_CLAIMERS = 16  # workers that claim at once
_QUICK_CLAIMERS = 2
_CLAIM = 16  # stage runs in a claim of one of them
_CLAIMS = 2  # claims of each
_DEADLINE_S = 86_400.0
_ANY_NUMBER = 1 << 30

_WORDS = ("Tell", "me", "why", "a", "quick", "brown", "fox", "would", "ever", "jump", "over", "the", "lazy", "dog")


def main() -> None:
    arguments = _arguments()
    parts, claimers = _PARTS, _CLAIMERS
    if arguments.quick:
        arguments.small, arguments.large, arguments.runs, parts, claimers = 256, 1024, 1, 1, _QUICK_CLAIMERS
    kinds = DATABASES if arguments.database == "both" else (arguments.database,)
    found = [
        item
        for kind in kinds
        for item in _of(kind, arguments.small, arguments.large, arguments.runs, parts=parts, claimers=claimers)
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


def _of(kind: str, small: int, large: int, runs: int, *, parts: int, claimers: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(kind)) for _ in (small, large)]
        few, many = sides
        few.fill(small)
        empty = many.stored_bytes()
        rate = many.fill(large)
        job_bytes = (many.stored_bytes() - empty) / large
        urls = [side.stack.settings.resolved_database_url for side in sides]
        several = stack.enter_context(Claimers(claimers, urls, _CLAIM))
        for side in sides:
            side.register("first", several.worker_ids)
        warm: list[dict[str, list[float]]] = [defaultdict(list) for _ in sides]
        _measure_part(sides, several, warm)
        _work(sides, warm)
        gc.collect()
        gc.freeze()  # what the fill left is not walked within a measurement, as in a worker
        measured = _alternate(kind, sides, several, runs, parts)
        broker_bytes = many.broker_bytes()
    yield figure(f"{kind}: filled, jobs/s", "jobs/s", [rate])
    yield figure(f"{kind}: database, bytes a job", "B", [job_bytes])
    yield figure(f"{kind}: broker, bytes beside {large} jobs", "B", [broker_bytes], at_most=1_000_000)
    yield from _figures(kind, measured, f"{small}", f"{large}", claimers)


def _alternate(
    kind: str, sides: Sequence[_Side], several: Claimers, runs: int, parts: int
) -> Mapping[str, list[tuple[float, float]]]:
    """Of every run, what each figure was on either side."""
    measured: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with Progress() as progress:
        bar = progress.add_task(f"{kind}: alternating", total=runs * parts)
        for _ in range(runs):
            seconds: list[dict[str, list[float]]] = [defaultdict(list) for _ in sides]
            for part in range(parts):
                _measure_part(sides, several, seconds, turn=1 if part % 2 else -1)
                progress.advance(bar)
            _work(sides, seconds)
            for name, (_, value_of) in _MEASURED.items():
                measured[name].append((value_of(seconds[0][name]), value_of(seconds[1][name])))
    return measured


def _measure_part(
    sides: Sequence[_Side], several: Claimers, seconds: Sequence[dict[str, list[float]]], turn: int = 1
) -> None:
    """Measure all but one worker's claims once, either side first by ``turn`` (1 or -1), and add to the seconds."""
    for number in (0, 1)[::turn]:
        sides[number].measure_requests(seconds[number])
        seconds[number][_SEVERAL].append(sides[number].claim_at_once(several, number))


def _work(sides: Sequence[_Side], seconds: Sequence[dict[str, list[float]]]) -> None:
    """Have one worker of each side take as many jobs as came, and add to the seconds.

    These machines' speed changes within a second: what is compared is done within milliseconds.
    """
    for _ in zip_longest(*(side.work(its) for side, its in zip(sides, seconds, strict=True))):
        pass


def _figures(
    kind: str, measured: Mapping[str, list[tuple[float, float]]], small: str, large: str, claimers: int
) -> Iterator[Figure]:
    for key, found in measured.items():
        unit, _ = _MEASURED[key]
        name = f"claims, {claimers} workers" if key == _SEVERAL else key
        for jobs, values in zip((small, large), zip(*found, strict=True), strict=True):
            yield figure(f"{kind}: {name}, {jobs} jobs", unit, values)
        ratios = [many / few for few, many in found]
        yield figure(f"{kind}: {name}, {large} / {small}", "×", ratios, **_TARGETS.get(key, {}))


def _rate(seconds: Sequence[float]) -> float:
    """Stage runs a second, of claims or completions of _AT_ONCE each."""
    return _AT_ONCE * len(seconds) / sum(seconds)


def _rate_of_several(seconds: Sequence[float]) -> float:
    """Return the stage runs a second of those whose ``seconds`` all the workers spent."""
    return len(seconds) / sum(seconds)


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))] * 1000


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000


_SEVERAL = "claims, several workers"
_MEASURED: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "claims, 1 worker": ("stage runs/s", _rate),
    _SEVERAL: ("stage runs/s", _rate_of_several),
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
    "claims, 1 worker": {"at_least": 0.6},
    _SEVERAL: {"at_least": 0.6},
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
    pipeline: Pipeline
    admitted: NewJob  # what every job of the fill asks for
    known: list[str] = field(default_factory=list)  # ids of some jobs
    _came: int = 0  # jobs that were submitted and not claimed yet

    # The fill

    def fill(self, count: int) -> float:
        """Register a worker of each stage, submit ``count`` jobs as fast as it goes, and return the jobs a second."""
        self.register("first", [_FIRST])
        self.register("second", [_SECOND])
        begin = time.perf_counter()
        for start in track(range(0, count, _AT_ONCE), description=f"filling: {count} jobs"):
            new = self._submit_directly(min(_AT_ONCE, count - start))
            if start % (_AT_ONCE * max(1, count // 100_000)) == 0:
                self.known += [job.job_id for job in new]
        return count / (time.perf_counter() - begin)

    def register(self, stage: str, worker_ids: Sequence[str]) -> None:
        """Register workers of a stage."""
        for worker_id in worker_ids:
            self.jobs.register_worker(worker(self.pipeline, stage, 2 * _AT_ONCE, worker_id), LEASE_S)

    def _submit_directly(self, count: int) -> list[NewJob]:
        """Submit ``count`` jobs in one transaction, and ring for them, as the API does for a bulk."""
        new = self._new_jobs(count)
        answers = self.jobs.submit_all(new)
        self.broker.ring({queue for answer in answers if isinstance(answer, SubmitResult) for queue in answer.queues})
        return new

    def _new_jobs(self, count: int) -> list[NewJob]:
        tenants = [f"tenant-{random.randrange(10)}" for _ in range(count)]  # noqa: S311
        of_all = replace(self.admitted, expires_in_s=_DEADLINE_S)
        return [replace(of_all, job_id=new_job_id(), tenant=tenant) for tenant in tenants]

    def broker_bytes(self) -> int:
        """Bytes that the broker holds in all its keys, most of them doorbells."""
        return sum(int(self.server.memory_usage(key, samples=0) or 0) for key in self.server.scan_iter())

    def stored_bytes(self) -> int:
        """Bytes of the database's tables and indexes."""
        if self.db.dialect == "postgresql":
            query = "SELECT pg_database_size(current_database())"
        else:
            query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self.db.read(lambda tx: tx.execute(text(query)).scalar_one()))

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

    def claim_at_once(self, several: Claimers, number: int) -> float:
        """Submit jobs and have as many claimed by several workers at once; seconds of them all for a stage run."""
        wanted = len(several.worker_ids) * _CLAIM * _CLAIMS
        self._submit_directly(wanted)
        claimed, seconds = several.claim(number, _CLAIMS)
        if claimed != wanted:
            raise SystemExit(f"{claimed} of {wanted} stage runs were claimed")
        self._finish_second()
        return seconds / claimed

    def work(self, seconds: dict[str, list[float]]) -> Iterator[None]:
        """As many jobs as were submitted go through both stages; it pauses after every claim and its completions."""
        while self._came >= _AT_ONCE:
            self._came -= _AT_ONCE
            self._claim_and_complete(_FIRST, seconds)
            yield
        while self._claim_and_complete(_SECOND, seconds):
            yield

    def _submit(self, count: int) -> Sequence[float]:
        answers = post_all(*self._address, "/v1/jobs", [json.dumps(_body()).encode()] * count, clients=_CLIENTS)
        self.known += [json.loads(body)["id"] for body in answers.bodies[::_CLIENTS]]
        self._came += count
        return answers.latencies

    def _get(self, paths: Sequence[str]) -> Sequence[float]:
        return get_all(*self._address, paths, clients=min(_CLIENTS, len(paths))).latencies

    @property
    def _address(self) -> tuple[str, int]:
        where = urlsplit(self.stack.url)
        return where.hostname or "", where.port or 0

    def _finish_second(self) -> None:
        while claims := self.jobs.claim(_SECOND, _AT_ONCE).claims:
            complete(self.jobs, _SECOND, claims)

    def _claim_and_complete(self, worker_id: str, seconds: dict[str, list[float]]) -> int:
        """Claim and complete _AT_ONCE stage runs; how many they were. The claims of the short line are not measured."""
        begin = time.perf_counter()
        claims = self.jobs.claim(worker_id, _AT_ONCE).claims
        claimed = time.perf_counter()
        if claims:
            complete(self.jobs, worker_id, claims)
            seconds["completions"].append(time.perf_counter() - claimed)
        if worker_id == _FIRST:
            seconds["claims, 1 worker"].append(claimed - begin)
            if len(claims) != _AT_ONCE:
                raise SystemExit(f"{len(claims)} of {_AT_ONCE} stage runs could be claimed")
        return len(claims)


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
        jobs = Jobs(db)
        server = held.enter_context(redis.Redis.from_url(stack.settings.broker_url.get_secret_value()))
        admitted = admit(parse(_body(), stack.settings), pipelines, stack.settings)
        yield _Side(stack, db, jobs, broker, server, pipelines[admitted.pipeline.name], admitted)


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
