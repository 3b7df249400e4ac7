"""The walk of every demo: start the stack, run its jobs over HTTP, stop."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from rich.console import Console

from omni_jobs.cli.live import show_progress, show_start
from omni_jobs.cli.tables import duration_text, size_text, timeline
from omni_jobs.client import Client
from omni_jobs.errors import StageError
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView

JOB_LIMIT_S = 1800.0
SILENCE_RMS = 1e-3  # -60 dB of full scale


@dataclass(frozen=True, slots=True)
class Walk:
    """A demo under way: the stack, a client of it, and where its results go."""

    stack: EmbeddedStack
    client: Client
    console: Console
    out: Path

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
        """Write a job's results to ``out``; print the files, how its sound is if it asked for one, and its times.

        Raises StageError for a sound that is missing or silent.
        """
        self.title("What came back")
        files = self.client.save(job, self.out)
        for file in files:
            self.console.print(f"{file}  ({size_text(file.stat().st_size)})", highlight=False, soft_wrap=True)
        if "audio" in job.modalities:
            self.console.print(_sound(files), highlight=False)
        self.title("Where the time went  (░ queued, █ running)")
        self.console.print(timeline(job))


def _sound(files: Sequence[Path]) -> str:
    """Return how long and how loud the sound among some files is. Raises StageError if none can be heard."""
    try:
        file = next(file for file in files if file.suffix == ".wav")
        samples, rate = soundfile.read(file)
    except (StopIteration, OSError, soundfile.LibsndfileError) as error:
        raise StageError(f"the job has no sound: {error}") from error
    rms = float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
    if rms < SILENCE_RMS:
        raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
    return f"{file.name}: {duration_text(len(samples) / rate)} of sound, RMS {rms:.3f} of full scale"


@contextmanager
def walking(console: Console, out: Path, pipelines: Sequence[str], models: Mapping[str, Path]) -> Iterator[Walk]:
    """A context manager: start the stack with the workers of some pipelines, and stop it in any case.

    ``models`` is the setting of this name, ``out`` the directory of the results. Raises what the start raises.
    """
    with tempfile.TemporaryDirectory(prefix="omni-jobs-demo-", ignore_cleanup_errors=True) as directory:
        # Progress comes often, because somebody is watching.
        settings = Settings(data_dir=Path(directory), models=dict(models), progress_every_s=0.1)
        console.print(
            "\n[bold]The stack: a broker, an API, a rescuer and one worker per stage, each its own process[/]"
        )
        stack = EmbeddedStack(settings, pipelines=list(pipelines), temporary=True)
        try:
            show_start(stack)
            with Client(stack.url) as client:
                yield Walk(stack, client, console, out)
        finally:
            stack.stop()
    console.print("\nAll steps succeeded, and everything is stopped.")
