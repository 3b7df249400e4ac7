"""The command that follows jobs to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect_async
from omni_jobs.cli.exits import Exit, exit_code_of_job, notice
from omni_jobs.cli.screen import how_it_ended, show_warnings
from omni_jobs.errors import NotFound

if TYPE_CHECKING:
    from omni_jobs.client import AsyncClient
    from omni_jobs.views import JobView


def watch(
    jobs: options.JobsArgument,
    timeout: options.WatchTimeoutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show the progress of jobs until they have ended: a bar for each stage, its text so far, or why it waits.

    A file or a pipe gets a line for each change. With --json each is the job as JSON on one line.

    The exit code is 0 if all jobs completed. Otherwise it is that of the first job, in the order given, that did not: 1
    failed, 4 there is none, 5 it has not ended within --timeout, 6 cancelled, 7 expired.

    \b
    Examples:
      omni-jobs watch job-0193…
      omni-jobs watch job-0193… job-0194… --timeout 600 --json > changes.jsonl
    """
    codes = asyncio.run(_codes_of(list(dict.fromkeys(jobs)), timeout, url, as_json))
    code = next(filter(None, codes), 0)
    if code != 0:
        raise typer.Exit(code)


async def _codes_of(ids: Sequence[str], timeout: float | None, url: str | None, as_json: bool) -> list[int]:
    """Follow all jobs at once, and return the exit code of each. Raises OmniJobsError if the server cannot tell."""
    from omni_jobs.cli.live import shown_changes

    async with connect_async(url) as client:
        with shown_changes(ids, as_json) as changed:
            ends = await asyncio.gather(*(_followed(client, job_id, timeout, changed) for job_id in ids))
    return [_reported(job_id, end) for job_id, end in zip(ids, ends, strict=True)]


async def _followed(
    client: AsyncClient, job_id: str, timeout: float | None, changed: Callable[[JobView], None]
) -> JobView | NotFound | TimeoutError:
    """Return a job once it has ended, or what keeps this one job from being followed."""
    try:
        return await client.wait(job_id, timeout=timeout, on_update=changed)
    except (NotFound, TimeoutError) as error:
        return error


def _reported(job_id: str, end: JobView | NotFound | TimeoutError) -> int:
    """Print what is to say about a job's end on stderr, and return its exit code."""
    if isinstance(end, NotFound):
        notice(f"{job_id}: {end}")
        return Exit.NOT_FOUND
    if isinstance(end, TimeoutError):
        notice(str(end))
        return Exit.TIMEOUT
    show_warnings(end)
    code = exit_code_of_job(end.status)
    if code != 0:
        notice(how_it_ended(end))
    return code
