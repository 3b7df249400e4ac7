"""Output of the commands: tables, JSON and the outcome of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from omni_jobs.cli.exits import exit_code_of_job, fail
from omni_jobs.cli.terminal import console, say, say_json

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from omni_jobs.views import ErrorView, JobView

T = TypeVar("T", bound="BaseModel | Sequence[BaseModel | Mapping[str, object]]")


def show(content: T, as_json: bool, render: Callable[[T], RenderableType]) -> None:
    """Print what ``show_json`` takes on stdout: as JSON, or as the text or rich renderable that ``render`` makes of it.

    A renderable is as wide as the terminal.
    """
    if as_json:
        show_json(content)
    elif isinstance(rendered := render(content), str):
        say(rendered)
    else:
        console().print(rendered)


def show_json(content: BaseModel | Sequence[BaseModel | Mapping[str, object]]) -> None:
    """Print a pydantic model as JSON on stdout, such as a view of the API; print several values as an array."""
    from pydantic_core import to_json

    say_json(to_json(content, indent=2).decode())


def show_repeatedly(content: Callable[[], RenderableType]) -> None:
    """Show the renderable that ``content`` returns, anew every second, until Ctrl-C or an error of ``content``."""
    from rich.live import Live

    with Live(content(), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(1.0)
            live.update(content(), refresh=True)


def show_outcome(job: JobView, as_json: bool, out: Path | None) -> None:
    """Print a job's text on stdout, and its artifacts and warnings on stderr; fail unless the job is completed.

    A job that is not completed shows what its stages made that succeeded: its text, and on stderr the texts of others.
    ``as_json`` prints the whole job in place of its text and artifacts. ``out`` is the directory that the artifacts
    were written to; None prints their URLs.
    """
    if as_json:
        show_json(job)
    else:
        text = job.made.get("text")
        if text is not None:
            say(text)
        elif job.result is None:
            for stage, found in job.made.get("texts", {}).items():
                say(f"{stage}: {found}", err=True)
        for artifact in job.artifacts:
            where = out / artifact.name if out is not None else artifact.url
            say(f"{where}  ({artifact.media_type}, {artifact.bytes} bytes)", err=True)
    show_warnings(job)
    code = exit_code_of_job(job.status)
    if code != 0:
        fail(how_it_ended(job), code)


def how_it_ended(job: JobView) -> str:
    """Return a line of text about a job that is not completed: its id, its state, and its error if it has one."""
    reason = "" if job.error is None else f": {_reason(job.error)}"
    return f"job {job.id} is {job.status.value}{reason}"


def _reason(error: ErrorView) -> str:
    """Return an error's message, after the stage and the field that it names."""
    places = [f"{name} {value}" for name, value in (("stage", error.stage), ("field", error.field)) if value]
    return f"{', '.join(places)}: {error.message}" if places else error.message


def show_warnings(job: JobView) -> None:
    """Print a job's warnings on stderr, a line each."""
    for warning in job.warnings:
        say(f"warning: {warning.message}", err=True)
