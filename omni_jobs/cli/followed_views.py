"""``followed_views``: a job as its stream of events tells it, a view for each change."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from omni_jobs.views import JobView, ProgressView, StageRunView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from omni_jobs.client import AsyncClient, JobEvent

_OF_PROGRESS = ("progress", "text", "picture")


async def followed_views(client: AsyncClient, job_id: str) -> AsyncGenerator[JobView, None]:
    """Yield a job as it is, and again with each event that changes it; last as it has ended.

    What a stage run has done so far stands in the events themselves. After any other event, and every 15 s while the
    job waits, the job is read once, because no event says why it waits. Raises as ``AsyncClient.stream``.
    """
    job: JobView | None = None
    while job is None or not job.status.is_final:  # it may have been retried at its end
        events = cast("AsyncGenerator[JobEvent, None]", client.stream(job_id, with_pings=True))
        async with aclosing(events):
            async for event in events:
                if event.name == "job" or job is None:
                    job = JobView.model_validate(event.data)
                elif event.name in _OF_PROGRESS:
                    job = with_progress(job, event)
                elif event.name != "ping" or job.waiting is not None:
                    job = await client.get(job_id)
                yield job
                if job.status.is_final:
                    return


def with_progress(job: JobView, event: JobEvent) -> JobView:
    """Return the view of a job with what an event says of a stage run's progress."""
    stages = [_advanced(stage, event) if stage.name == event.data["stage"] else stage for stage in job.stages]
    return job.model_copy(update={"stages": stages})


def _advanced(stage: StageRunView, event: JobEvent) -> StageRunView:
    """Return a stage run with its progress. The view may be newer than the event: then it stays as it is."""
    data = event.data
    if stage.attempt != data["attempt"] or stage.status.is_final:
        return stage
    progress = stage.progress or ProgressView(done=0, total=None, unit="")
    known = progress.text or ""
    if event.name == "progress" and data["done"] >= progress.done:
        news = {name: data[name] for name in ("done", "total", "unit", "resumed_at")}
    elif event.name == "picture":
        news = {"picture": data["picture"]}
    elif event.name == "text" and data["offset"] + len(data["text"]) > len(known):
        news = {"text": known[: data["offset"]] + data["text"]}
    else:
        return stage
    return stage.model_copy(update={"progress": progress.model_copy(update=news)})
