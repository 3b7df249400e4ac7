"""The steps of every demo: start the stack, run its jobs over HTTP, stop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import soundfile  # type: ignore[import-untyped]
from rich.console import Console

from omni_jobs.cli.formats import duration_text, size_text
from omni_jobs.cli.live import show_progress, show_start
from omni_jobs.cli.tables import timeline
from omni_jobs.client import Client
from omni_jobs.demo.checkpoints import cache_directory
from omni_jobs.errors import StageError
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState

if TYPE_CHECKING:
    from omni_jobs.views import JobView

JOB_LIMIT_S = 1800.0
SILENCE_RMS = 1e-3  # -60 dB of full scale


class Demo(Protocol):
    """The interface of a demo, which ``walk`` runs."""

    pipelines: Sequence[str]  # those whose workers are started
    out: str  # the directory of its results in the cache

    def models(self, console: Console) -> Mapping[str, Path]:
        """Return the checkpoint directories, as the setting ``models`` has them; make what is missing first.

        Raises ConfigError if that fails.
        """

    def run(self, scene: Scene) -> None:
        """Run the demo's jobs and show their results. Raises OmniJobsError or TimeoutError if one is wrong."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a running demo works with."""

    stack: EmbeddedStack
    client: Client
    console: Console
    out: Path  # the directory of the results
    scratch: Path  # a directory for files that the demo makes

    def title(self, title: str) -> None:
        """Print the title of a step."""
        self.console.print(f"\n[bold]{title}[/bold]", highlight=False)

    def run_job(self, request: Mapping[str, Any], on_update: Callable[[JobView], object] | None = None) -> JobView:
        """Submit a job, wait for its end, and return it. Raises StageError if it is not completed, and TimeoutError.

        ``on_update`` gets the job whenever it has changed; without it the terminal shows the job's progress.
        """
        job = self.client.submit(request)
        self.console.print(f"submitted {job.id}", highlight=False)
        if on_update is None:
            job = show_progress(self.client, job.id, JOB_LIMIT_S)
        else:
            job = self.client.wait(job.id, timeout=JOB_LIMIT_S, on_update=on_update)
        if job.status != JobState.COMPLETED:
            raise StageError(f"job {job.id} is {job.status.value}: {job.error.message if job.error else ''}")
        return job

    def show_results(self, job: JobView) -> None:
        """Write a job's results to ``out``; print the files, how its sound is if it has one, and where its time went.

        Raises StageError for a sound that is missing or silent.
        """
        self.title("What came back")
        for path in self.client.save(job, self.out):
            self.console.print(f"{path}  ({size_text(path.stat().st_size)})", highlight=False, soft_wrap=True)
        if "audio" in job.modalities:
            _show_sound(self.console, job, self.out)
        self.title("Where the time went  (░ queued, █ running)")
        self.console.print(timeline(job))


def _show_sound(console: Console, job: JobView, directory: Path) -> None:
    """Print the length and loudness of a job's sound, whose file is in ``directory``.

    Raises StageError if there is none, it cannot be read, or it is silent.
    """
    name = next((artifact.name for artifact in job.artifacts if artifact.media_type.startswith("audio/")), None)
    if name is None:
        raise StageError("the job has no sound")
    try:
        samples, rate = soundfile.read(directory / name)
    except (OSError, soundfile.LibsndfileError) as error:
        raise StageError(f"{name} cannot be read: {error}") from error
    rms = float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
    if rms < SILENCE_RMS:
        raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
    console.print(
        f"{name}: {duration_text(len(samples) / rate)} of sound, RMS {rms:.3f} of full scale", highlight=False
    )


def walk(demo: Demo, out: Path | None, console: Console) -> None:
    """Start the stack, run the demo with results in ``out``, and stop the stack.

    None as ``out`` is a directory in the cache. Raises OmniJobsError or TimeoutError if a step fails, after the stop.
    """
    began = time.monotonic()
    models = demo.models(console)
    fetched = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omni-jobs-demo-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        # Progress comes often, because somebody is watching.
        settings = Settings(data_dir=scratch / "data", models=dict(models), progress_every_s=0.1)
        console.print(
            "\n[bold]The stack: a broker, an API, a rescuer and one worker per stage, each its own process[/]"
        )
        stack = EmbeddedStack(settings, pipelines=list(demo.pipelines), temporary=True)
        try:
            show_start(stack)
            started = time.monotonic()
            with Client(stack.url) as client:
                demo.run(Scene(stack, client, console, out or cache_directory() / demo.out, scratch))
            finished = time.monotonic()
        finally:
            stack.stop()
    console.print(
        f"\nAll steps succeeded, and everything is stopped: {duration_text(fetched - began)} for the checkpoint, "
        f"{duration_text(started - fetched)} to start, {duration_text(finished - started)} for the jobs, "
        f"{duration_text(time.monotonic() - finished)} to stop.",
        highlight=False,
    )
