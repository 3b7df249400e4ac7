"""Displays that change while a person watches: the stack's start, and a job's progress.

They are on stderr. Where that is no terminal, they print one line per child or per change instead.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from omni_jobs.cli.tables import children_table, duration_text, job_progress, waiting_reason
from omni_jobs.cli.terminal import console, say
from omni_jobs.files import new_file
from omni_jobs.states import JobState, StageRunState

if TYPE_CHECKING:
    from pathlib import Path

    from omni_jobs.client import Client
    from omni_jobs.stack.embedded import EmbeddedStack
    from omni_jobs.views import JobView

_SOON_S = 1.0  # a wait of which nobody is told
_JPEG = "data:image/jpeg;base64,"


def show_start(stack: EmbeddedStack) -> None:
    """Start the embedded stack, and show its children meanwhile. Raises what ``EmbeddedStack.start`` raises."""
    screen = console(err=True)
    if screen.is_terminal:
        with Live(get_renderable=lambda: children_table(stack.children()), console=screen, refresh_per_second=8):
            stack.start()
        return
    stack.start()
    for child in stack.children():
        say(f"{child.name} ready after {duration_text(child.start_s)}", err=True)


def show_progress(client: Client, job_id: str, timeout: float | None = None, preview_in: Path | None = None) -> JobView:
    """Wait for a job, show its progress meanwhile, and return the job once it has ended, in whatever state.

    ``preview_in``: the directory that gets the newest preview meanwhile, of a job that asked for previews.
    Raises NotFound, TimeoutError after ``timeout`` seconds, if given, and OSError for a preview.
    """
    screen = console(err=True)
    latest = client.get(job_id)
    printed: set[tuple[str, str]] = set()
    preview = None if preview_in is None else PreviewFile(preview_in)

    def update(job: JobView) -> None:
        nonlocal latest
        latest = job
        if preview is not None and preview.update(job):
            screen.print(Text(f"the newest preview: {preview.path}"), soft_wrap=True)
        if not screen.is_terminal:
            for stage in job.stages:
                if stage.status != StageRunState.PENDING and (stage.name, stage.status.value) not in printed:
                    printed.add((stage.name, stage.status.value))
                    say(f"{stage.name} {stage.status.value}", err=True)
            waiting = job.waiting
            if waiting is None or (waiting.estimate is not None and waiting.estimate.high_s <= _SOON_S):
                return
            if (waiting.stage, waiting.reason) not in printed:
                printed.add((waiting.stage, waiting.reason))
                say(waiting_reason(waiting), err=True)

    if not screen.is_terminal:
        return client.wait(job_id, timeout=timeout, on_update=update)
    with Live(get_renderable=lambda: job_progress(latest), console=screen, refresh_per_second=8):
        return client.wait(job_id, timeout=timeout, on_update=update)


class PreviewFile:
    """``preview.jpeg`` in a directory, written anew with each preview of a job, and gone once the job is completed."""

    def __init__(self, directory: Path) -> None:
        """Write nothing yet; the directory is made for the first preview."""
        self.path = directory / "preview.jpeg"
        self._shown: str | None = None  # the preview in the file, as the job's view has it

    def update(self, job: JobView) -> bool:
        """Write the job's newest preview if the file has another; return whether the file is new. Raises OSError.

        What is no JPEG is passed over. The file of a completed job is deleted: the finished picture takes its place.
        """
        if job.status is JobState.COMPLETED:
            if self._shown is not None:
                self.path.unlink(missing_ok=True)
            return False
        found = [stage.progress.picture for stage in job.stages if stage.progress and stage.progress.picture]
        if not found or found[-1] == self._shown or not found[-1].startswith(_JPEG):
            return False
        try:
            data = base64.b64decode(found[-1].removeprefix(_JPEG), validate=True)
        except ValueError:
            return False
        is_new, self._shown = self._shown is None, found[-1]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as file:
            file.write(data)
        return is_new
