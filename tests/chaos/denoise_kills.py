"""Kill what denoises, again and again, each time at a random step, and compare the pictures or videos.

    python -m tests.chaos.denoise_kills [--pipeline wan] [--times 50] [--company 3] [--victim engine] [--seed 1]
                                        [--json FILE]

On a tiny checkpoint of Qwen-Image or Wan, through the whole embedded stack, with a snapshot every five steps. Every
picture or video is made undisturbed first. Then the jobs of a round are submitted, and the worker of their denoising,
or its engine's process, gets SIGKILL at a random step of the first job, once that has a snapshot. Each artifact is
compared with the undisturbed one:

alone        the file is the same to the last byte
in company   the same to the rounding of sums in another order (--company: so many other jobs at once)

A job's next attempt goes on from a snapshot, which its progress names (``resumed_at``). Exit code 1: an artifact is
another, a job failed, or an attempt went on from an earlier step than that of the newest snapshot that was recorded
before the kill.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.progress import track
from sqlalchemy import Engine, create_engine, text

from omni_jobs.client import Client
from omni_jobs.database.tables import decode_json
from omni_jobs.jobs import StoredSnapshot
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView, StageRunView
from tests.chaos.real_models import PIPELINES, differ_by
from tests.processes import named
from tests.stage_configs import write_stage_configs

Victim = Literal["worker", "engine"]

STAGE, STEPS, EVERY = "denoise", 120, 5
ARTIFACTS = 5  # different ones
ENGINES = {STAGE: {"snapshot_every_s": 0, "snapshot_every_steps": EVERY}}
LIMIT_S = 300.0

T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """What the jobs of a pipeline make. ``parameters``: of their denoising, which has ``STEPS``."""

    modality: Literal["image", "video"]
    artifact: str
    parameters: Mapping[str, int]


DRAWN: Mapping[str, Drawn] = {
    "qwen_image": Drawn("image", "image.png", {"width": 160, "height": 160}),
    "wan": Drawn("video", "video.mp4", {"width": 128, "height": 96, "num_frames": 33}),
}


@dataclass(frozen=True)
class Round:
    """Jobs that are under way together, and the kill that they meet."""

    victim: Victim
    seeds: Sequence[int]
    strike_at: int  # the step of the first job


@dataclass(frozen=True)
class Kill:
    """What became of one job of a round."""

    victim: Victim
    alone: bool
    told: int  # the last step of the progress before the kill
    recorded: int  # the steps of the newest snapshot that was recorded before the kill; 0: there was none
    resumed_at: int  # the step from which the next attempt went on
    attempts: int
    is_same: bool  # the whole file
    difference: float  # of two colours, the largest; of videos the mean of a frame's
    rounding: int  # the difference that company may bring
    status: str

    @property
    def problem(self) -> str | None:
        if self.status != JobState.COMPLETED:
            return f"the job is {self.status}"
        if self.alone and not self.is_same:
            return f"the file is another, colours differ by {self.difference}"
        if self.difference > self.rounding:
            return f"colours differ by {self.difference}"
        if self.resumed_at < self.recorded:
            return f"went on from step {self.resumed_at}, though step {self.recorded} had a snapshot"
        return None


def main() -> int:
    arguments = _arguments()
    subject = PIPELINES[arguments.pipeline]
    with tempfile.TemporaryDirectory(prefix="omni-jobs-kills-") as name:
        directory = Path(name)
        settings = Settings(
            data_dir=directory / "data",
            stage_configs=write_stage_configs(directory / "configs", arguments.pipeline, ENGINES),
            models=subject.models(directory),
            progress_every_s=0.05,
            lease_s=5.0,
            heartbeat_s=0.5,
        )
        with EmbeddedStack(settings, pipelines=[arguments.pipeline]) as stack, Client(stack.url) as client:
            run = _Run(stack, client, arguments.pipeline)
            kills = run.kill_again_and_again(list(_rounds(arguments)))
            run.close()
    _report(kills, arguments.json)
    return 1 if any(kill.problem for kill in kills) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=DRAWN, default="qwen_image", help="default qwen_image")
    parser.add_argument("--times", type=int, default=50, help="kills; every second one in company (default 50)")
    parser.add_argument("--company", type=int, default=3, help="other jobs at once; 0: all alone (default 3)")
    parser.add_argument(
        "--victim", choices=("worker", "engine"), action="append", help="what is killed; several in turn (default both)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the steps at which it strikes (default 1)")
    parser.add_argument("--json", type=Path, help="write what became of each job here")
    return parser.parse_args()


def _rounds(arguments: argparse.Namespace) -> Iterator[Round]:
    chance = random.Random(arguments.seed)
    companies = (0, arguments.company) if arguments.company else (0,)
    kinds = cycle(product(arguments.victim or ("worker", "engine"), companies))
    for victim, company in islice(kinds, arguments.times):
        seeds = [chance.randrange(ARTIFACTS) for _ in range(1 + company)]
        yield Round(victim, seeds, chance.randrange(1, STEPS - 1))


class _Run:
    """The rounds of one stack."""

    def __init__(self, stack: EmbeddedStack, client: Client, pipeline: str) -> None:
        self._stack = stack
        self._client = client
        self._pipeline = pipeline
        self._drawn = DRAWN[pipeline]
        self._rounding = PIPELINES[pipeline].rounding
        self._database: Engine = create_engine(stack.settings.resolved_database_url, connect_args={"timeout": 30})

    def close(self) -> None:
        self._database.dispose()

    def kill_again_and_again(self, rounds: Sequence[Round]) -> list[Kill]:
        undisturbed: dict[int, bytes] = {}
        for seed in sorted({seed for each in rounds for seed in each.seeds}):
            view = self._client.wait(self._submit(seed), timeout=LIMIT_S)
            if view.status is not JobState.COMPLETED:
                raise SystemExit(f"job {view.id} is {view.status.value}: {view.error}")
            undisturbed[seed] = self._client.artifact(view, self._drawn.artifact)
        return [kill for each in track(rounds, description="kills") for kill in self._carry_out(each, undisturbed)]

    def _carry_out(self, planned: Round, undisturbed: Mapping[int, bytes]) -> Iterator[Kill]:
        jobs = [self._submit(seed) for seed in planned.seeds]
        _until(partial(self._is_due, jobs[0], planned.strike_at))
        told, recorded = ([count(job) for job in jobs] for count in (self._done, self._recorded))
        self._kill(planned.victim)
        resumed = [_until(partial(self._went_on, job)) for job in jobs]
        for number, (seed, job) in enumerate(zip(planned.seeds, jobs, strict=True)):
            view = self._client.wait(job, timeout=LIMIT_S)
            made = b""
            if view.status is JobState.COMPLETED:
                made = self._client.artifact(view, self._drawn.artifact)
            is_same = made == undisturbed[seed]
            yield Kill(
                victim=planned.victim,
                alone=len(jobs) == 1,
                told=told[number],
                recorded=recorded[number],
                resumed_at=resumed[number],
                attempts=_run_of(view).attempt,
                is_same=is_same,
                difference=differ_by(made, undisturbed[seed]) if made and not is_same else 0.0,
                rounding=self._rounding,
                status=view.status.value,
            )

    def _submit(self, seed: int) -> str:
        body = {
            "model": self._pipeline,
            "messages": [{"role": "user", "content": f"Picture {seed}"}],
            "modalities": [self._drawn.modality],
            "seed": seed,
            "stages": {STAGE: {**self._drawn.parameters, "steps": STEPS}},
        }
        return self._client.submit(body).id

    def _is_due(self, job_id: str, step: int) -> bool:
        """Whether a job has a snapshot and has done this many steps, or is over."""
        run = _run_of(self._client.get(job_id))
        return run.finished_at is not None or (_done(run) >= step and self._recorded(job_id) > 0)

    def _done(self, job_id: str) -> int:
        return _done(_run_of(self._client.get(job_id)))

    def _recorded(self, job_id: str) -> int:
        """Return the steps of a job's newest snapshot; 0: it has none."""
        query = text("SELECT snapshot FROM stage_runs WHERE job_id = :job AND stage = :stage")
        with self._database.begin() as tx:
            stored = tx.execute(query, {"job": job_id, "stage": STAGE}).scalar_one()
        return 0 if stored is None else StoredSnapshot.of(decode_json(stored)).steps_done

    def _kill(self, victim: Victim) -> None:
        name = f"worker {self._pipeline}.{STAGE}"
        worker = next(child.pid for child in self._stack.children() if child.name == name)
        if worker is None:
            raise SystemExit(f"{name} is not running")
        if victim == "engine":
            [engine] = named(worker, b"engine_main")
            os.kill(engine, signal.SIGKILL)
        else:
            os.kill(worker, signal.SIGKILL)

    def _went_on(self, job_id: str) -> int | None:
        """Return where a job's second attempt began, once it tells; a stage run that ended before has none."""
        view = self._client.get(job_id)
        run = _run_of(view)
        if run.attempt > 1 and run.progress is not None:
            return run.progress.resumed_at or 0
        # An attempt whose end was recorded before anything was told of it, or that the kill did not meet.
        return STEPS if run.finished_at is not None or view.status.is_final else None


def _run_of(view: JobView) -> StageRunView:
    return next(run for run in view.stages if run.name == STAGE)


def _done(run: StageRunView) -> int:
    """Return the steps of which the progress tells: 0 before the first."""
    return 0 if run.progress is None else run.progress.done


def _until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + LIMIT_S
    while (found := look()) is None or found is False:
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing happened for {LIMIT_S:.0f} s")
        time.sleep(0.03)
    return found


def _report(kills: Sequence[Kill], to: Path | None) -> None:
    for alone, name in ((True, "alone"), (False, "in company")):
        some = [kill for kill in kills if kill.alone is alone]
        met = [kill for kill in some if kill.attempts > 1]
        again = [kill.told - kill.resumed_at for kill in met]
        print(
            f"{name}: {len(some)} jobs, {len(met)} met by a kill; {sum(kill.is_same for kill in some)} files are the "
            f"same, colours differ by at most {max((kill.difference for kill in some), default=0):g}; steps taken "
            f"again: at most {max(again, default=0)}"
        )
    for kill in kills:
        if kill.problem is not None:
            print(f"violation: {kill.problem}: {kill}", file=sys.stderr)
    if to is not None:
        found: list[dict[str, Any]] = [asdict(kill) | {"problem": kill.problem} for kill in kills]
        to.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
