"""The steps of every demo: start the stack, run its jobs over HTTP, stop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from omni_jobs.cli.formats import duration_text, size_text
from omni_jobs.cli.live import show_start
from omni_jobs.cli.tables import timeline
from omni_jobs.client import Client
from omni_jobs.demo.checkpoints import cache_directory
from omni_jobs.errors import StageError
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState

if TYPE_CHECKING:
    from omni_jobs.views import JobView


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
        print_title(self.console, title)

    def run_job(self, request: Mapping[str, Any], follow: Callable[[str], JobView]) -> JobView:
        """Submit a job, and return it completed; ``follow`` waits for it. Raises StageError if it ends otherwise."""
        job = self.client.submit(dict(request))
        self.console.print(f"submitted {job.id}", highlight=False)
        return completed(follow(job.id))

    def save(self, job: JobView) -> None:
        """Write the job's results to ``out``, and print the files."""
        for path in self.client.save(job, self.out):
            self.console.print(f"{path}  ({size_text(path.stat().st_size)})", highlight=False, soft_wrap=True)

    def show_times(self, job: JobView) -> None:
        """Show where the job's time went."""
        self.title("Where the time went  (░ queued, █ running)")
        self.console.print(timeline(job))


def walk(demo: Demo, out: Path | None, console: Console) -> None:
    """Start the stack, run the demo with results in ``out``, and stop the stack.

    None as ``out`` is a directory in the cache. Raises OmniJobsError or TimeoutError if a step fails, after the stop.
    """
    began = time.monotonic()
    models = demo.models(console)
    fetched = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omni-jobs-demo-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        settings = Settings(
            data_dir=scratch / "data", models=dict(models), progress_every_s=0.1
        )  # somebody is watching
        print_title(console, "The stack: a broker, an API, a rescuer and one worker per stage, each its own process")
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


def completed(job: JobView) -> JobView:
    """Return the job. Raises StageError, with the job's error, if it is not completed."""
    if job.status != JobState.COMPLETED:
        raise StageError(f"job {job.id} is {job.status.value}: {job.error.message if job.error else ''}")
    return job


def print_title(console: Console, title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]", highlight=False)
