"""Kill a worker or its engine, again and again, each time at a random moment of its start, and see what survives.

    python -m tests.chaos.start_kills [--times 50] [--ranks 2] [--seed 1] [--target worker] [--signal SIGTERM]

Real vLLM with the tiny Qwen2.5-Omni on CPUs; the worker of its thinker has an EngineCore process, and with two ranks
that has a process for each. A start that nobody disturbs shows how long it takes. Then each round starts the worker
and strikes at a random moment of that time one of

worker  the worker's own process
engine  a process that the worker started
rank    a process that the engine started

with SIGKILL, SIGTERM or SIGSEGV, or with the one that --signal names. After an engine or a rank was struck the worker
has to end by itself, and after SIGTERM by its time. Once the worker has ended, however that was, no process of its
session may live longer than two minutes: on a busy machine a rank imports vLLM for one, and only then looks for its
engine. Exit code 1: one did, or a worker did not end.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import yaml

from omni_jobs.database.database import Database
from omni_jobs.stack.sentinel import processes_of
from tests.integration.echo_stack import OMNI, EchoStack
from tests.processes import children, command_line
from tests.services.valkey import start_valkey
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

START_S = 600.0  # for a worker to serve, and for one whose engine was struck to end
STOP_S = (
    25.0  # for a worker to end that was asked to: 3 s of drain and 15 s are promised, the rest is for a busy machine
)
GONE_S = 120.0  # for what a worker started to end after it
POLL_S = 0.01
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)

Target = Literal["worker", "engine", "rank"]


@dataclass(frozen=True)
class Kill:
    """What became of one start. Times in seconds."""

    target: Target
    signal: str
    at_s: float  # after the start
    below: int  # the processes that the worker had below it then
    ended_s: float | None  # from the strike to the worker's end; None: it did not end
    gone_s: float | None  # from the worker's end to that of all that it started; None: some survived
    survivors: Sequence[str]  # their command lines

    @property
    def problem(self) -> str | None:
        if self.ended_s is None:
            return "the worker did not end"
        if self.target == "worker" and self.signal == "SIGTERM" and self.ended_s > STOP_S:
            return f"the worker took {self.ended_s:.1f} s to end"
        return f"outlived their worker: {', '.join(self.survivors)}" if self.gone_s is None else None


class Starts:
    """Starts the worker of one stack, in a session of its own each time, and strikes."""

    def __init__(
        self, stack: EchoStack, targets: Sequence[Target], signals: Sequence[signal.Signals], chance: random.Random
    ) -> None:
        self._stack = stack
        self._targets = targets
        self._signals = signals
        self._chance = chance
        self._serves_s: dict[Target, tuple[float, float]] = {}  # from when on each target is there, until it serves

    def undisturbed(self) -> None:
        """Start once and stop, to learn when the processes appear and when the worker serves."""
        worker = self._launch()
        began = time.monotonic()
        appeared: dict[Target, float] = {}
        while not self._serves(worker):
            if worker.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"the worker does not start:\n{self._log.read_text()[-4000:]}")
            for target in self._targets:
                if target not in appeared and _victims(worker.pid, target):
                    appeared[target] = time.monotonic() - began
            time.sleep(POLL_S)
        took = time.monotonic() - began
        if lacking := set(self._targets) - set(appeared):
            raise SystemExit(f"no {' and no '.join(sorted(lacking))} was seen before the worker served")
        self._serves_s = {target: (at, took) for target, at in appeared.items()}
        print(f"a start takes {took:.1f} s; {', '.join(f'{name} after {at:.1f} s' for name, at in appeared.items())}")
        worker.terminate()
        worker.wait(START_S)
        _gone(worker.pid)

    def kill_one(self) -> Kill:
        """Start, and strike at a random moment."""
        target = self._chance.choice(self._targets)
        number = self._chance.choice(self._signals)
        first, last = self._serves_s[target]
        at_s = self._chance.uniform(first, last)
        worker = self._launch()
        began = time.monotonic()
        while worker.poll() is None and (
            time.monotonic() - began < at_s or not (victims := _victims(worker.pid, target))
        ):
            time.sleep(POLL_S)
        if worker.poll() is not None:
            raise SystemExit(f"the worker ended by itself:\n{self._log.read_text()[-4000:]}")
        below = len(processes_of([worker.pid])) - 1
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(victims), number)
        struck = time.monotonic()
        ended_s = gone_s = None
        survivors: list[str] = []
        try:
            worker.wait(START_S)
            ended_s = time.monotonic() - struck
            gone_s, survivors = _gone(worker.pid)
        except subprocess.TimeoutExpired:
            survivors = [command_line(pid) for pid in processes_of([worker.pid])]
        finally:
            _end(worker)
        return Kill(target, number.name, struck - began, below, ended_s, gone_s, survivors)

    @property
    def _log(self) -> Path:
        return self._stack.directory / "start.log"

    def _launch(self) -> "subprocess.Popen[bytes]":
        command, environment = self._stack.command(
            "-Q", "qwen2_5_omni.thinker", "-n", "thinker@kills", "--without-gossip", "--without-mingle", "-l", "INFO"
        )
        engine = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                command, env=environment | engine, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _serves(self, worker: "subprocess.Popen[bytes]") -> bool:
        return any(view.pid == worker.pid for view in self._stack.jobs.workers())


def _victims(worker: int, target: Target) -> list[int]:
    """The processes that are the target now: engines and ranks are those that multiprocessing or vLLM named so."""
    if target == "worker":
        return [worker]
    engines = [pid for pid in children(worker) if _computes(pid)]
    return engines if target == "engine" else [pid for each in engines for pid in children(each) if _computes(pid)]


def _computes(pid: int) -> bool:
    line = command_line(pid)
    return "multiprocessing.spawn" in line or line.startswith("VLLM::")


def _gone(session: int) -> tuple[float | None, list[str]]:
    """Wait until no process of the session lives: after how many seconds, or None with those that do."""
    began = time.monotonic()
    while left := processes_of([session]):
        if time.monotonic() - began > GONE_S:
            return None, [f"{pid} {command_line(pid)}" for pid in left]
        time.sleep(POLL_S)
    return time.monotonic() - began, []


def _end(worker: "subprocess.Popen[bytes]") -> None:
    """End what survived, so that the next round is alone."""
    for pid in processes_of([worker.pid]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.wait()


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="omni-jobs-kills-") as name, _stack(Path(name), arguments.ranks) as stack:
        targets: tuple[Target, ...] = ("worker", "engine") if arguments.ranks == 1 else ("worker", "engine", "rank")
        starts = Starts(
            stack,
            (arguments.target,) if arguments.target else targets,
            (signal.Signals[arguments.signal],) if arguments.signal else SIGNALS,
            random.Random(arguments.seed),
        )
        starts.undisturbed()
        kills = []
        for number in range(arguments.times):
            kill = starts.kill_one()
            kills.append(kill)
            told = kill.problem or f"worker ended after {kill.ended_s:.2f} s, the rest {kill.gone_s:.2f} s later"
            print(f"{number + 1}: {kill.signal} of the {kill.target} at {kill.at_s:.1f} s: {told}", flush=True)
    return _report(kills, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="starts that are struck (default 50)")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1, help="of the engine (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the targets and moments (default 1)")
    parser.add_argument("--target", choices=("worker", "engine", "rank"), help="strike no other (default any)")
    parser.add_argument(
        "--signal",
        choices=sorted({each.name for each in (*SIGNALS, signal.SIGQUIT)}),
        help="send no other (default any)",
    )
    parser.add_argument("--json", type=Path, help="write what became of each start here")
    return parser.parse_args()


@contextmanager
def _stack(directory: Path, ranks: int) -> Iterator[EchoStack]:
    """SQLite, Valkey, and the shipped Qwen2.5-Omni on a tiny checkpoint."""
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    config = yaml.safe_load(OMNI.read_text(encoding="utf-8"))
    config["model"]["path"] = str(build_tiny_checkpoint(directory / "checkpoint", seed=0))
    config["stages"]["thinker"]["engine"]["tensor_parallel_size"] = ranks
    variables: Mapping[str, str] = {"OMNI_JOBS_SPOOL_DIR": str(directory / "spool"), "OMNI_JOBS_DEVICE": "cpu"}
    (directory / "valkey").mkdir()
    valkey = start_valkey(directory / "valkey")
    try:
        broker = f"redis://127.0.0.1:{valkey.port}/0"
        stack = EchoStack(directory, url, broker, variables, pipeline="qwen2_5_omni", config=yaml.safe_dump(config))
        yield stack
        stack.close()
    finally:
        valkey.stop()


def _report(kills: Sequence[Kill], to: Path | None) -> int:
    for (target, name), count in sorted(Counter((kill.target, kill.signal) for kill in kills).items()):
        some = [kill for kill in kills if (kill.target, kill.signal) == (target, name)]
        ended = max((kill.ended_s or START_S for kill in some), default=0)
        gone = max((kill.gone_s or GONE_S if kill.problem else kill.gone_s or 0.0 for kill in some), default=0)
        print(f"{name} of the {target}: {count} times; worker ended after {ended:.1f} s, the rest {gone:.1f} s later")
    problems = [kill for kill in kills if kill.problem is not None]
    for kill in problems:
        print(f"violation: {kill.problem}: {kill}", file=sys.stderr)
    print(f"{len(kills)} starts struck, {len(problems)} left something behind")
    if to is not None:
        found = [asdict(kill) | {"problem": kill.problem} for kill in kills]
        to.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
