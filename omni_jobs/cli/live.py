"""Displays that change while a person watches: the stack's start, and a job's progress.

They are on stderr, but for ``omni-jobs watch``, which shows nothing else. Where that is no terminal, they print one
line per child or per change instead.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from omni_jobs.cli.tables import children_table, duration_text, job_progress, jobs_progress, waiting_reason
from omni_jobs.cli.terminal import console, say, say_json
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
    lines = ProgressLines()
    preview = None if preview_in is None else PreviewFile(preview_in)

    def update(job: JobView) -> None:
        nonlocal latest
        latest = job
        if preview is not None and preview.update(job):
            screen.print(Text(f"the newest preview: {preview.path}"), soft_wrap=True)
        if not screen.is_terminal:
            for line in lines.new_in(job):
                say(line, err=True)

    if not screen.is_terminal:
        return client.wait(job_id, timeout=timeout, on_update=update)
    with Live(get_renderable=lambda: job_progress(latest), console=screen, refresh_per_second=8):
        return client.wait(job_id, timeout=timeout, on_update=update)


@contextmanager
def shown_changes(ids: Sequence[str], as_json: bool) -> Iterator[Callable[[JobView], None]]:
    """Context manager: gives a function that shows on stdout what is new in the view of one of these jobs.

    A terminal shows all jobs with their stages; any other output gets a line for each change. ``as_json``: each line is
    the job's view, and changes of an estimate alone have none.
    """
    screen = console()
    if as_json or not screen.is_terminal:
        lines = {job_id: JsonLines() if as_json else ProgressLines() for job_id in ids}

        def print_changes(job: JobView) -> None:
            for line in lines[job.id].new_in(job):
                say_json(line) if as_json else say(f"{job.id} {line}")
            sys.stdout.flush()

        yield print_changes
        return
    latest: dict[str, JobView | None] = dict.fromkeys(ids)

    def keep(job: JobView) -> None:
        latest[job.id] = job

    with Live(get_renderable=lambda: jobs_progress(latest), console=screen, refresh_per_second=8):
        yield keep


class ProgressLines:
    """Tells of each state of a job and of its stages, and of each reason to wait, once: a line each."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def new_in(self, job: JobView) -> list[str]:
        """Return the lines that no earlier view of the job has told. A wait of a moment has none."""
        found = {
            (stage.name, stage.status.value): f"{stage.name} {stage.status.value}"
            for stage in job.stages
            if stage.status != StageRunState.PENDING
        }
        waiting = job.waiting
        if waiting is not None and (waiting.estimate is None or waiting.estimate.high_s > _SOON_S):
            found[waiting.stage, waiting.reason] = waiting_reason(waiting)
        new = {what: line for what, line in found.items() if what not in self._told}
        self._told |= new.keys()
        return list(new.values())


class JsonLines:
    """Tells of each change of a job as JSON on one line, but for changes of an estimate alone."""

    def __init__(self) -> None:
        self._told: JobView | None = None

    def new_in(self, job: JobView) -> list[str]:
        """Return the line of the job's view, or none if only its estimate is another than before."""
        waiting = job.waiting and job.waiting.model_copy(update={"estimate": None})
        comparable = job.model_copy(update={"waiting": waiting})
        if comparable == self._told:
            return []
        self._told = comparable
        return [job.model_dump_json()]


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
