"""Workers that come and go by ``/v1/scaling``: how long jobs wait, how many workers that takes, what a stop costs.

    python -m benchmarks.scaling --json FILE [--minutes 10] [--keep 20] [--database sqlite] [--seed 1] [--quick]

The load has phases: a burst onto no worker, none, a steady rate about what a number of workers can do, a ramp, none.
The command reads the route every two seconds, and starts and stops worker processes of a stage of the real stack by it;
one that is stopped is chosen by the seed, whatever it runs. A worker is stopped once fewer were wanted for a while, as
Kubernetes does (the HPA's stabilization window). The stage runs take steps, and a snapshot every half second, from
which another worker goes on. Each worker notes the steps that it takes: so those are counted that were taken twice
because of a stop. The answers tell whether a step was forgotten.

Beside it stands a simulation with the same load, the time that these workers took to start, and the same rule; and a
stage of another kind is simulated over a day: its workers take a minute and a half to load, as a model of 7 billion
parameters does.
"""

import argparse
import bisect
import itertools
import math
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from benchmarks.paced import STAGE, Workers
from benchmarks.services import DATABASES, database
from benchmarks.stepping import EVERY, STEP_S, STEPS, answer, installed, lost_steps, write_pipeline
from omni_jobs.client import Client
from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import StageNeed, wanted_workers
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState

SLOTS = 4
RUN_S = STEPS * STEP_S
WAIT_S = 6.0  # asked of the rule
EVERY_S = 2.0  # between two looks at it
MOST = 4  # workers, as an operator would bound them
KEEP_S = 20.0  # in which every look wanted fewer, before one is stopped; --keep
NAME = "scaled"
BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class Seen:
    """What became of a load. ``workers`` has (seconds since the begin, how many there were), a pair for each look."""

    waits: list[float] = field(default_factory=list)  # seconds from a submit to the claim
    workers: list[tuple[float, int]] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """How often their number went the other way than before."""
        counts = [count for _, count in self.workers]
        steps = [after - before for before, after in itertools.pairwise(counts) if after != before]
        return sum(1 for one, other in itertools.pairwise(steps) if (one > 0) is not (other > 0))

    @property
    def worker_s(self) -> float:
        """The sum of the seconds that each worker was there."""
        return sum(count * (then - at) for (at, count), (then, _) in itertools.pairwise(self.workers))

    def drawn(self, width: int = 72) -> str:
        """The number of workers over time, as a line of blocks."""
        most = max((count for _, count in self.workers), default=0) or 1
        end = self.workers[-1][0] or 1.0
        times = [at for at, _ in self.workers]
        counts = [self.workers[max(0, bisect.bisect(times, end * x / width) - 1)][1] for x in range(width)]
        return "".join(BARS[math.ceil(count / most * (len(BARS) - 1))] for count in counts) + f"  0 to {most} workers"


class Window:
    """The most that was wanted within so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()

    def most(self, at: float, wanted: int) -> int:
        self._wanted.append((at, wanted))
        while self._wanted[0][0] < at - self._seconds:
            self._wanted.popleft()
        return max(each for _, each in self._wanted)


def arrivals(seconds: float, seed: int) -> list[float]:
    """The times of the submits of phases that together last ``seconds``: burst, none, steady, ramp, none."""
    draw = random.Random(seed)  # noqa: S311 — a load that is the same again
    part = seconds / 5
    one_worker = SLOTS / RUN_S  # jobs/s
    found = [draw.uniform(0, 1) for _ in range(round(one_worker * part * 1.2))]
    found += _drawn(draw, 2 * part, 3 * part, lambda _: 1.3 * one_worker)
    found += _drawn(draw, 3 * part, 4 * part, lambda at: 2.5 * one_worker * (at - 3 * part) / part)
    return sorted(found)


def _drawn(draw: random.Random, begin: float, end: float, rate: Callable[[float], float]) -> Iterator[float]:
    """Yield times of a Poisson process whose rate changes, by thinning one of the highest rate."""
    most = max(rate(begin), rate(end), rate((begin + end) / 2))
    at = begin
    while (at := at + draw.expovariate(most)) < end:
        if draw.random() * most <= rate(at):
            yield at


def simulated(
    submits: Sequence[float],
    *,
    end_s: float,
    run_s: float,
    load_s: float,
    slots: int,
    wait_s: float,
    every_s: float,
    most: int,
    keep_s: float = 0.0,
) -> Seen:
    """Play a load before workers that come and go by the rule: one that goes ends what it runs, and takes nothing.

    A worker's slots are the times at which each is free.
    """
    seen, window = Seen(), Window(keep_s)
    waiting: list[float] = []
    serving: list[list[float]] = []
    loading: list[float] = []  # when each is ready
    coming = iter(submits)
    following = next(coming, None)
    for look in range(math.ceil(end_s / every_s)):
        begin = look * every_s
        for tick in range(10):
            at = begin + tick * every_s / 10
            while following is not None and following <= at:
                waiting.append(following)
                following = next(coming, None)
            serving += [[at] * slots for ready in loading if ready <= at]
            loading = [ready for ready in loading if ready > at]
            for worker in serving:
                for slot, free in enumerate(worker):
                    if free <= at and waiting:
                        seen.waits.append(at - waiting.pop(0))
                        worker[slot] = at + run_s
        running = sum(free > at for worker in serving for free in worker)
        known_s = run_s if seen.waits else None
        need = StageNeed(len(waiting), running, len(serving), len(loading), slots, known_s)
        wanted = window.most(at, min(most, wanted_workers(need, wait_s)))
        there = len(serving) + len(loading)
        seen.workers.append((at, there))
        loading += [at + load_s] * (wanted - there)
        for _ in range(there - wanted):
            serving.sort(key=lambda worker: sum(free > at for free in worker))
            loading.pop() if loading else serving.pop(0)
    seen.waits += [math.inf] * len(waiting)
    return seen


class Fleet:
    """The worker processes that the command started."""

    def __init__(self, pipeline: Pipeline, settings: Settings, log: Path, seed: int) -> None:
        self._workers = Workers(pipeline, settings, log)
        self._draw = random.Random(seed)  # noqa: S311
        self._numbers = itertools.count()
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopping: list[subprocess.Popen[bytes]] = []
        self._started: dict[str, float] = {}
        self.load_s: list[float] = []  # from the start of each to the first look that saw it serve

    def follow(self, wanted: int) -> None:
        """Start or stop workers, so that there are as many as are wanted."""
        for process in (*self.running, *self.stopping):
            stopped = -signal.SIGTERM if process in self.stopping else 0  # before Python had begun to listen
            if process.poll() not in (None, 0, stopped):
                raise SystemExit(f"a worker ended with {process.returncode}; its log: {self._workers.log}")
        while len(self.running) < wanted:
            slot = f"{NAME}-{next(self._numbers)}@scaled"
            self._started[slot] = time.monotonic()
            self.running.append(self._workers.start(slot))
        while len(self.running) > wanted:
            process = self.running.pop(self._draw.randrange(len(self.running)))
            process.terminate()
            self.stopping.append(process)

    def note_serving(self, slots: Iterable[str]) -> None:
        """Note which workers serve at this look."""
        for slot in self._started.keys() & set(slots):
            self.load_s.append(time.monotonic() - self._started.pop(slot))

    def close(self) -> None:
        """End them all."""
        self._workers.close()


@dataclass(frozen=True)
class Run:
    """What a run on the real stack is to do."""

    kind: str  # of database
    seconds: float
    keep_s: float
    seed: int


def _real(run: Run) -> Iterator[Figure]:
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-")))
        opened.enter_context(installed(directory / "site"))
        url = opened.enter_context(database(run.kind))
        configs, steps = directory / "stage_configs", directory / "steps"
        pipeline = load_pipeline(write_pipeline(configs, NAME, slots=SLOTS, log=steps))
        # A stop hands back what would take longer: each that is lost or run twice then would show.
        settings = Settings(data_dir=directory / "data", database_url=url, stage_configs=configs, drain_s=0.5)
        stack = opened.enter_context(EmbeddedStack(settings, pipelines=[NAME]))
        client = opened.enter_context(Client(stack.url))
        for worker in client.status().workers:
            client.set_drained(worker.id, True)  # the stack's own: the rule counts it on top
        with closing(Fleet(pipeline, stack.settings, directory / "workers.log", run.seed)) as fleet:
            yield from _followed(client, fleet, run)
        lost = lost_steps(steps)
        yield figure(f"{run.kind}: stage runs that a stop moved to another worker", "moves", [len(lost)])
        most = max(lost, default=0) / EVERY
        name = f"{run.kind}: what a stop cost one of them, most / between two snapshots"
        yield figure(name, "intervals", [most], at_most=2)  # the last one is on its way


def _followed(client: Client, fleet: Fleet, run: Run) -> Iterator[Figure]:
    kind, seconds = run.kind, run.seconds
    submits = arrivals(seconds, run.seed)
    seen, window = Seen(), Window(run.keep_s)
    jobs: list[str] = []
    unanswered = 0
    began = time.monotonic()
    with Progress(transient=True) as progress:
        bar = progress.add_task(kind, total=seconds)
        for look in itertools.count():
            at = time.monotonic() - began
            due = bisect.bisect(submits, at)
            bodies = [
                {"model": NAME, "messages": [{"role": "user", "content": f"job {number}"}]}
                for number in range(len(jobs), due)
            ]
            jobs += [client.submit(body).id for body in bodies]
            try:
                found = client.scaling(NAME, STAGE, wait_s=WAIT_S)
                fleet.follow(window.most(at, min(MOST, found.wanted - found.drained)))
                fleet.note_serving(worker.slot for worker in client.status().workers)
            except OmniJobsError:
                unanswered += 1
            seen.workers.append((at, len(fleet.running)))
            progress.update(bar, completed=at)
            if at > seconds and not fleet.running:
                break
            if at > seconds + 120:
                raise SystemExit(f"{len(fleet.running)} workers are left two minutes after the last job")
            time.sleep(max(0.0, began + (look + 1) * EVERY_S - time.monotonic()))
    views = [client.get(each) for each in jobs]
    right = [
        view.status is JobState.COMPLETED and (view.result or {}).get("text") == answer(f"job {number}")
        for number, view in enumerate(views)
    ]
    attempts = [view.stages[0].attempt for view in views]
    for view in views:
        started = view.stages[0].started_at
        if started is not None:
            seen.waits.append((started - view.created_at).total_seconds())
    load_s = max(0.0, statistics.median(fleet.load_s) - EVERY_S / 2)
    again = simulated(
        submits,
        end_s=seconds + 60,
        run_s=RUN_S,
        load_s=load_s,
        slots=SLOTS,
        wait_s=WAIT_S,
        every_s=EVERY_S,
        most=MOST,
        keep_s=run.keep_s,
    )
    Console().print(
        f"{kind}: workers of the stack, and simulated\n{seen.drawn()}\n{again.drawn()}", highlight=False, soft_wrap=True
    )
    yield figure(f"{kind}: jobs", "jobs", [len(views)])
    yield figure(f"{kind}: completed with the right answer / jobs", "", [sum(right) / len(jobs)], at_least=1)
    yield figure(f"{kind}: attempts / jobs", "", [sum(attempts) / len(jobs)])
    yield figure(f"{kind}: the route answered / looks", "", [1 - unanswered / len(seen.workers)], at_least=1)
    yield figure(f"{kind}: a worker's start", "s", [load_s])
    yield from _of_seen(f"{kind}: the stack", seen)
    yield from _of_seen(f"{kind}: simulated", again)


def _of_seen(name: str, seen: Seen) -> Iterator[Figure]:
    waits = sorted(seen.waits)
    yield figure(f"{name}, wait p50", "s", [waits[len(waits) // 2]])
    yield figure(f"{name}, wait p99", "s", [waits[int(0.99 * len(waits))]])
    yield figure(f"{name}, workers", "worker s", [seen.worker_s])
    yield figure(f"{name}, changes of direction", "changes", [seen.turns])


def _day() -> Iterator[Figure]:
    """A day of a stage whose workers take 90 s to load and 20 s for a run, with its most jobs at noon."""
    day = 86_400.0
    draw = random.Random(1)  # noqa: S311
    submits = list(_drawn(draw, 0.0, day * 5 / 6, lambda at: 1.2 * math.sin(math.pi * at / (day * 5 / 6)) ** 2))
    for keep_s, name in ((0.0, "a day, simulated"), (300.0, "a day, simulated, kept for 300 s")):
        seen = simulated(
            submits,
            end_s=day,
            run_s=20.0,
            load_s=90.0,
            slots=8,
            wait_s=60.0,
            every_s=15.0,
            most=16,
            keep_s=keep_s,
        )
        most = max(count for _, count in seen.workers)
        Console().print(f"{name}\n{seen.drawn()}", highlight=False, soft_wrap=True)
        yield from _of_seen(name, seen)
        yield figure(f"{name}: workers' time / as many as its noon has", "", [seen.worker_s / most / day])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load on the real stack (default 10)")
    parser.add_argument("--keep", type=float, default=KEEP_S, help="seconds before a worker is stopped (default 20)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of the load and of who is stopped (default 1)")
    parser.add_argument("--quick", action="store_true", help="half a minute: whether it works")
    arguments = parser.parse_args()
    seconds = 30.0 if arguments.quick else 60 * arguments.minutes
    figures = list(_day())
    for kind in arguments.database or DATABASES:
        figures += _real(Run(kind, seconds, arguments.keep, arguments.seed))
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
