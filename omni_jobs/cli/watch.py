"""The command that follows jobs to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
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

_MOST_STREAMS = 50  # each keeps a connection, of 100 that the client has; its job is read over another one


def watch(
    jobs: options.JobsArgument,
    timeout: options.WatchTimeoutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show the progress of jobs until they have ended: a bar for each stage, its text so far, or why it waits.

    The events of each job are followed, of up to 50 jobs at once; where a connection breaks, another one goes on. A
    file or a pipe gets a line for each change. With --json each is the job as JSON on one line.

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

    began = asyncio.get_running_loop().time()
    places = asyncio.Semaphore(_MOST_STREAMS)

    async def followed(job_id: str) -> JobView | NotFound | TimeoutError:
        async with places:
            return await _followed(client, job_id, timeout, began, changed)

    async with connect_async(url) as client:
        with shown_changes(ids, as_json) as changed:
            ends = await asyncio.gather(*map(followed, ids))
    return [_reported(job_id, end) for job_id, end in zip(ids, ends, strict=True)]


async def _followed(
    client: AsyncClient, job_id: str, timeout: float | None, began: float, changed: Callable[[JobView], None]
) -> JobView | NotFound | TimeoutError:
    """Return a job once it has ended, or what keeps this one job from being followed.

    ``timeout`` counts from ``began``, a time of the event loop; the job is seen once in any case.
    """
    from omni_jobs.cli.followed_views import followed_views

    views = followed_views(client, job_id)
    try:
        async with aclosing(views), asyncio.timeout(None) as limit:
            job = await anext(views)
            changed(job)
            limit.reschedule(None if timeout is None else began + timeout)
            async for view in views:
                if view != job:
                    changed(view)
                job = view
            return job
    except NotFound as error:
        return error
    except TimeoutError:
        return TimeoutError(f"job {job_id} is {job.status.value} after {timeout:g} s")


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
