"""Kill the worker that denoises, again and again, each time at a random step, and compare the pictures.

    python -m tests.chaos.picture_kills [--times 50] [--company 3] [--seed 1] [--json FILE]

On a tiny Qwen-Image checkpoint, through the whole embedded stack, with a snapshot every five steps. Every picture is
drawn undisturbed first. Then the jobs of a round are submitted, their worker gets SIGKILL at a random step of the
first, and each picture is compared with the undisturbed one:

alone        every pixel is the same
in company   within 1 of 255, because sums are rounded in another order (--company: so many other jobs at once)

The steps taken again are those from the snapshot, which the job's progress names (``resumed_at``), to the last step
that the progress had told of before the kill. They are at most those between two snapshots, and those that were taken
while the last snapshot was on its way to the object store. Exit code 1: a picture is another, a job failed, or a job
took more than two intervals of steps again.
"""

import argparse
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView, StageRunView
from tests.stage_configs import write_stage_configs
from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint

PIPELINE, STAGE = "qwen_image", "denoise"
SIDE, STEPS, EVERY = 160, 120, 5
PICTURES = 5  # different ones
ENGINES = {STAGE: {"snapshot_every_s": 0, "snapshot_every_steps": EVERY}}
LIMIT_S = 300.0

T = TypeVar("T")


@dataclass(frozen=True)
class Kill:
    """What became of one job of a round."""

    alone: bool
    told: int  # the last step of the progress before the kill
    resumed_at: int  # the step from which the next attempt went on
    attempts: int
    difference: int  # of two pixels' colours, the largest
    status: str

    @property
    def problem(self) -> str | None:
        if self.status != JobState.COMPLETED:
            return f"the job is {self.status}"
        if self.difference > (0 if self.alone else 1):
            return f"colours differ by {self.difference}"
        if self.told - self.resumed_at > 2 * EVERY:  # a snapshot on its way is lost
            return f"went on from step {self.resumed_at}, though step {self.told} was taken"
        return None


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="omni-jobs-kills-") as name:
        directory = Path(name)
        settings = Settings(
            data_dir=directory / "data",
            stage_configs=write_stage_configs(directory / "configs", PIPELINE, ENGINES),
            models={PIPELINE: build_tiny_checkpoint(directory / "checkpoint", seed=0)},
            progress_every_s=0.05,
            lease_s=5.0,
            heartbeat_s=0.5,
        )
        with EmbeddedStack(settings, pipelines=[PIPELINE]) as stack, Client(stack.url) as client:
            kills = _kill_again_and_again(stack, client, arguments)
    _report(kills, arguments.json)
    return 1 if any(kill.problem for kill in kills) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="kills; every second one in company (default 50)")
    parser.add_argument("--company", type=int, default=3, help="other jobs at once (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the steps at which it strikes (default 1)")
    parser.add_argument("--json", type=Path, help="write what became of each job here")
    return parser.parse_args()


def _kill_again_and_again(stack: EmbeddedStack, client: Client, arguments: argparse.Namespace) -> list[Kill]:
    chance = random.Random(arguments.seed)
    undisturbed = [_pixels(client, client.wait(_submit(client, seed), timeout=LIMIT_S)) for seed in range(PICTURES)]
    kills: list[Kill] = []
    for number in track(range(arguments.times), description="kills"):
        company = arguments.company if number % 2 else 0
        seeds = [chance.randrange(PICTURES) for _ in range(1 + company)]
        jobs = [_submit(client, seed) for seed in seeds]
        strike_at = chance.randrange(1, STEPS - 1)
        _until(partial(_is_due, client, jobs[0], strike_at))
        told = [_done(client, job) for job in jobs]
        _kill_worker(stack)
        resumed = [_until(partial(_went_on, client, job)) for job in jobs]
        for seed, job, before, resumed_at in zip(seeds, jobs, told, resumed, strict=True):
            view = client.wait(job, timeout=LIMIT_S)
            difference = 255
            if view.status is JobState.COMPLETED:
                difference = int(np.abs(_pixels(client, view) - undisturbed[seed]).max())
            attempts = _run_of(view).attempt
            kills.append(Kill(not company, before, resumed_at, attempts, difference, view.status.value))
    return kills


def _submit(client: Client, seed: int) -> str:
    body = {
        "model": PIPELINE,
        "messages": [{"role": "user", "content": f"Picture {seed}"}],
        "modalities": ["image"],
        "seed": seed,
        "stages": {STAGE: {"width": SIDE, "height": SIDE, "steps": STEPS}},
    }
    return client.submit(body).id


def _run_of(view: JobView) -> StageRunView:
    return next(run for run in view.stages if run.name == STAGE)


def _done(client: Client, job_id: str) -> int:
    """Return the steps of which the progress tells: 0 before the first."""
    progress = _run_of(client.get(job_id)).progress
    return 0 if progress is None else progress.done


def _is_over(client: Client, job_id: str) -> bool:
    return _run_of(client.get(job_id)).finished_at is not None


def _went_on(client: Client, job_id: str) -> int | None:
    """Return where the job's second attempt began, once it tells; a stage run that ended before the kill has none."""
    view = client.get(job_id)
    run = _run_of(view)
    if run.attempt > 1 and run.progress is not None:
        return run.progress.resumed_at or 0
    # An attempt whose end was recorded before anything was told of it, or that the kill did not meet.
    return STEPS if run.finished_at is not None or view.status.is_final else None


def _kill_worker(stack: EmbeddedStack) -> None:
    name = f"worker {PIPELINE}.{STAGE}"
    pid = next(child.pid for child in stack.children() if child.name == name)
    if pid is None:
        raise SystemExit(f"{name} is not running")
    os.kill(pid, signal.SIGKILL)


def _pixels(client: Client, view: JobView) -> NDArray[np.int32]:
    """Return the job's picture, int32 [H, W, 3]."""
    if view.status is not JobState.COMPLETED:
        raise SystemExit(f"job {view.id} is {view.status.value}: {view.error}")
    with Image.open(io.BytesIO(client.artifact(view, "image.png"))) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.int32)


def _is_due(client: Client, job: str, step: int) -> bool:
    """Whether a job has done this many steps, or is over."""
    return _done(client, job) >= step or _is_over(client, job)


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
            f"{name}: {len(some)} jobs, {len(met)} met by a kill; colours differ by at most "
            f"{max((kill.difference for kill in some), default=0)}; steps taken again: at most {max(again, default=0)}"
        )
    for kill in kills:
        if kill.problem is not None:
            print(f"violation: {kill.problem}: {kill}", file=sys.stderr)
    if to is not None:
        found: list[dict[str, Any]] = [asdict(kill) | {"problem": kill.problem} for kill in kills]
        to.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
