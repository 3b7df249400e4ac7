"""The steps of every demo: start the stack, submit one job over HTTP, follow it, show the result, stop."""

from __future__ import annotations

import tempfile
import time
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
    """The interface of a demo, which ``walk`` runs: the checkpoint and request for one job, and how it is shown."""

    pipeline: str
    subject: str  # the job's input in a few words
    out: str  # the directory of its results in the cache

    def checkpoint(self, console: Console) -> Path:
        """Return the checkpoint directory; make it first if it is missing. Raises ConfigError if that fails."""

    def request(self, scratch: Path) -> dict[str, Any]:
        """Return the job's request; write the files that it needs to the directory ``scratch`` first."""

    def follow(self, client: Client, job_id: str) -> JobView:
        """Wait for the job, show it meanwhile, return it once ended in any state. Raises TimeoutError after a while."""

    def show(self, console: Console, job: JobView, out: Path) -> None:
        """Print the job's result, whose files are in ``out``. Raises StageError if the result is wrong."""


def walk(demo: Demo, out: Path | None, console: Console) -> None:
    """Start the stack, submit the demo's job over HTTP, follow it, write its results to ``out``, show them, stop.

    None as ``out`` is a directory in the cache. Raises OmniJobsError or TimeoutError if a step fails, after the stop.
    """
    began = time.monotonic()
    checkpoint = demo.checkpoint(console)
    out = out or cache_directory() / demo.out
    fetched = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omni-jobs-demo-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        models = {demo.pipeline: checkpoint}
        settings = Settings(data_dir=scratch / "data", models=models, progress_every_s=0.1)  # somebody is watching
        _title(console, "The stack: a broker, an API, a rescuer and one worker per stage, each its own process")
        stack = EmbeddedStack(settings, pipelines=[demo.pipeline], temporary=True)
        try:
            show_start(stack)
            started = time.monotonic()
            _title(console, f"One job over HTTP: {demo.subject} to {stack.url}/v1/jobs")
            with Client(stack.url) as client:
                job = client.submit(demo.request(scratch))
                console.print(f"submitted {job.id}", highlight=False)
                job = demo.follow(client, job.id)
                if job.status != JobState.COMPLETED:
                    raise StageError(f"job {job.id} is {job.status.value}: {job.error.message if job.error else ''}")
                files = client.save(job, out)
            finished = time.monotonic()
            _title(console, "What came back")
            demo.show(console, job, out)
            for path in files:
                console.print(f"{path}  ({size_text(path.stat().st_size)})", highlight=False, soft_wrap=True)
            _title(console, "Where the time went  (░ queued, █ running)")
            console.print(timeline(job))
        finally:
            stack.stop()
    console.print(
        f"\nAll steps succeeded, and everything is stopped: {duration_text(fetched - began)} for the checkpoint, "
        f"{duration_text(started - fetched)} to start, {duration_text(finished - started)} for the job, "
        f"{duration_text(time.monotonic() - finished)} to stop.",
        highlight=False,
    )


def _title(console: Console, title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]", highlight=False)
