"""Estimates of waits: what share of the intervals of 80 % that waiting jobs are told holds.

    python -m benchmarks.estimates --json FILE [--seconds 150] [--database sqlite] [--quick]

Four stages are loaded side by side, each in a scene of its own: arrivals whose rate goes up and down between less
and more than the workers can take, bursts, one tenant or several with priorities, workers that come and go, stage
runs whose length drifts. Jobs, leases, claims and the rescuer's rounds are the platform's own, on a real database in
real time. Only what a stage run does is left out: a worker here holds it for a drawn time, and reports it completed.

Some jobs are read a moment after their submit, as their users would. A read that tells an interval counts, and holds if
the job's stage run was claimed within it. Intervals told because a slot was free do not count.
"""

import argparse
import heapq
import math
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, figure, report
from benchmarks.services import DATABASES, database
from omni_jobs.database.database import Database
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Completion, Jobs, NewJob, NewStage, NewWorker, new_job_id
from omni_jobs.priority import Priority
from workers.execution.observers.run_times import RunTimes

_TICK_S = 0.02
_HEARTBEAT_S = 1.0
_LEASE_S = 30.0
_ASKED = 0.25  # the share of jobs that are read while they wait
_ASKED_AFTER_S = 1.5  # in the mean
_DRAIN_S = 90.0
_SLOTS = 4
_FEW = 40  # of fewer intervals no share is told
_BASIS_THAT_COUNTS = "the work before it"


@dataclass(frozen=True)
class Scene:
    """A stage and the load on it. Rates are by what two workers can take; times are in seconds."""

    name: str
    run_s: float  # how long a stage run takes, in the mean
    spread: float  # the standard deviation of its logarithm
    drift: float = 0.0  # the factor by which the mean grows and shrinks over a minute
    low: float = 0.6
    high: float = 1.3
    period_s: float = 25.0  # from one rise of the rate to the next
    burst: int = 0  # jobs at once, every 20 s
    tenants: int = 1
    priorities: bool = False
    workers: tuple[int, ...] = (2,)  # the numbers that serve, each for 15 s


SCENES = (
    Scene("steady workers", 0.4, 0.5),
    Scene("bursts and tenants", 0.25, 0.8, burst=80, tenants=5, low=0.4, high=0.8),
    Scene("workers that come and go", 0.4, 0.5, workers=(2, 1, 3, 2, 1), low=0.5, high=1.0),
    Scene("priorities and drift", 0.3, 0.3, drift=1.6, tenants=3, priorities=True, low=0.5, high=1.1),
)


@dataclass(frozen=True)
class Told:
    """An interval that a waiting job was told, and what became of it."""

    low_s: float
    high_s: float
    waited_s: float

    @property
    def held(self) -> bool:
        return self.low_s <= self.waited_s <= self.high_s


@dataclass
class _Worker:
    """A worker of a scene: it claims for its free slots and holds each stage run for a drawn time."""

    jobs: Jobs
    pipeline: str
    number: int
    dice: random.Random
    times: RunTimes = field(default_factory=RunTimes)
    running: list[tuple[float, float, int, int]] = field(default_factory=list)  # (end, claimed at, id, attempt)
    renew_at: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.pipeline}-{self.number}"

    def start(self) -> None:
        worker = NewWorker(
            self.id, self.id, StageId(PipelineId(self.pipeline, "digest"), "only"), "host", 1, _SLOTS, "1"
        )
        self.jobs.register_worker(worker, _LEASE_S)

    def turn(self, now: float, run_s: float, spread: float) -> list[str]:
        """End what is over, claim for the free slots, and return the ids of the jobs that have started."""
        if now >= self.renew_at:
            self.jobs.renew(self.id, _LEASE_S, self.times.mean(now))
            self.renew_at = now + _HEARTBEAT_S
        ended = []
        while self.running and self.running[0][0] <= now:
            _, since, stage_run_id, attempt = heapq.heappop(self.running)
            self.times.note(now, now - since)
            ended.append(Completion(stage_run_id, attempt, self.id))
        if ended:
            self.jobs.report(ended)
        free = _SLOTS - len(self.running)
        claims = self.jobs.claim(self.id, free, is_idle=not self.running).claims if free else ()
        for claim in claims:
            length_s = run_s * self.dice.lognormvariate(-spread * spread / 2, spread)
            heapq.heappush(self.running, (now + length_s, now, claim.stage_run_id, claim.attempt))
        return [claim.job_id for claim in claims]

    def stop(self) -> None:
        """Leave, and hand back what runs."""
        self.jobs.retire_worker(self.id)


class Play:
    """A scene that is played once: its load, its workers and those who ask."""

    def __init__(self, jobs: Jobs, scene: Scene) -> None:
        self._jobs = jobs
        self._scene = scene
        self.pipeline = scene.name.replace(" ", "_")
        self._dice = random.Random(scene.name)  # noqa: S311
        self._workers: list[_Worker] = []
        self._asks: list[tuple[float, str]] = []  # (when, job)
        self._open: dict[str, tuple[float, float, float]] = {}  # (told at, low, high), by job
        self._waiting: set[str] = set()
        self.told: list[Told] = []

    def run(self, seconds: float) -> None:
        """Play for this time, and then until all who asked know, at most so long as a drain may take."""
        begin = time.monotonic()
        last = 0.0
        while (at := time.monotonic() - begin) < seconds + _DRAIN_S and (at < seconds or self._open):
            if at < seconds:
                self._submit(last, at)
            self._man(at)
            self._ask(at)
            scale = self._scene.drift ** math.sin(at / 60 * 2 * math.pi) if self._scene.drift else 1.0
            for worker in self._workers:
                for job_id in worker.turn(time.monotonic(), self._scene.run_s * scale, self._scene.spread):
                    self._started(job_id)
            last = at
            time.sleep(max(0.0, begin + at + _TICK_S - time.monotonic()))
        for worker in self._workers:
            worker.stop()

    def _submit(self, last: float, at: float) -> None:
        scene = self._scene
        share = scene.high if (at % scene.period_s) < scene.period_s / 2 else scene.low
        mean = share * 2 * _SLOTS / scene.run_s * (at - last)
        count = int(mean) + (self._dice.random() < mean % 1)
        if scene.burst and int(at / 20) != int(last / 20):
            count += scene.burst
        jobs = [self._new_job() for _ in range(count)]
        self._jobs.submit_all(jobs)
        for job in jobs:
            self._waiting.add(job.job_id)
            if self._dice.random() < _ASKED:
                heapq.heappush(self._asks, (at + self._dice.expovariate(1 / _ASKED_AFTER_S), job.job_id))

    def _new_job(self) -> NewJob:
        return NewJob(
            job_id=new_job_id(),
            pipeline=PipelineId(self.pipeline, "digest"),
            pipeline_version="1",
            request={},
            modalities=["text"],
            stages=[NewStage("only", (), f"{self.pipeline}.only")],
            seed=0,
            request_digest="r",
            tenant=f"tenant-{min(self._dice.choices(range(self._scene.tenants), k=2))}",
            priority=self._dice.choice(list(Priority)) if self._scene.priorities else Priority.NORMAL,
        )

    def _man(self, at: float) -> None:
        """Let workers come and go."""
        wanted = self._scene.workers[int(at / 15) % len(self._scene.workers)]
        while len(self._workers) < wanted:
            self._workers.append(_Worker(self._jobs, self.pipeline, len(self._workers), self._dice))
            self._workers[-1].start()
        while len(self._workers) > wanted:
            self._workers.pop().stop()

    def _ask(self, at: float) -> None:
        while self._asks and self._asks[0][0] <= at:
            _, job_id = heapq.heappop(self._asks)
            if job_id not in self._waiting:
                continue
            waiting = self._jobs.get(job_id).waiting
            if waiting is not None and (told := waiting.estimate) and told.basis.startswith(_BASIS_THAT_COUNTS):
                self._open[job_id] = (time.monotonic(), told.low_s, told.high_s)

    def _started(self, job_id: str) -> None:
        self._waiting.discard(job_id)
        if (told := self._open.pop(job_id, None)) is not None:
            told_at, low_s, high_s = told
            self.told.append(Told(low_s, high_s, time.monotonic() - told_at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seconds", type=float, default=150.0, help="of load (default 150)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few seconds, on SQLite: whether it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.database = 6.0, ["sqlite"]
    kinds = arguments.database or DATABASES
    report([found for kind in kinds for found in _of(kind, arguments.seconds)], arguments.json)


def _of(kind: str, seconds: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        db = Database(url or f"sqlite:///{Path(directory) / 'omni-jobs.sqlite'}")
        db.migrate()
        plays = _played(Jobs(db), seconds)
        published = {each.pipeline: each for each in Jobs(db).calibrations()}
        db.close()
    for play, scene in zip(plays, SCENES, strict=True):
        yield from _shares(f"{kind}: {scene.name}", play.told)
        if (found := published.get(play.pipeline)) is not None and found.share and found.estimates >= _FEW:
            yield figure(f"{kind}: {scene.name}: held, as published", "share", [found.share])
    told = [each for play in plays for each in play.told]
    if told:
        held = sum(each.held for each in told) / len(told)
        yield figure(f"{kind}: all: intervals", "", [len(told)])
        yield figure(f"{kind}: all: held", "share", [held], at_least=0.75)
        yield figure(f"{kind}: all: held, and no more", "share", [held], at_most=0.85)


def _played(jobs: Jobs, seconds: float) -> Sequence[Play]:
    """Play all scenes at once, with the rounds of a rescuer beside them, and return them."""
    plays = [Play(jobs, scene) for scene in SCENES]
    ended = threading.Event()

    def rescue() -> None:
        while not ended.wait(1.0):
            jobs.rescue()
            jobs.calibrate()

    with ThreadPoolExecutor(len(plays) + 1) as pool:
        rounds = pool.submit(rescue)
        try:
            list(pool.map(lambda play: play.run(seconds), plays))
        finally:
            ended.set()
        rounds.result()
    return plays


def _shares(name: str, told: Sequence[Told]) -> Iterator[Figure]:
    if len(told) < _FEW:
        return
    yield figure(f"{name}: intervals", "", [len(told)])
    yield figure(f"{name}: held", "share", [sum(each.held for each in told) / len(told)])
    yield figure(f"{name}: a wait, median", "s", [median(each.waited_s for each in told)])
    yield figure(f"{name}: width of an interval, median", "s", [median(each.high_s - each.low_s for each in told)])


if __name__ == "__main__":
    main()
