"""The jobs that make a video, alone and in pages, with what was asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Text, bindparam, case, func, select, text

from omni_jobs.database.clock import now
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import MAKES_VIDEO, MAKES_VIDEO_FOR_ALL, JobRow, WorkerRow
from omni_jobs.errors import NotFound
from omni_jobs.jobs.read.job_view import job_view, views_of
from omni_jobs.jobs.read.waits import Detail
from omni_jobs.jobs.values import VideoJob, VideoPage

MOST_REQUEST = 64 << 10
"""Characters of JSON of a request that is read: a page has a hundred of them."""

_REQUESTS = select(JobRow.id, case((func.length(JobRow.request) <= MOST_REQUEST, JobRow.request))).where(
    one_of(JobRow.id, bindparam("ids", type_=Text))
)
_RUN_S = (
    select(WorkerRow.stage, func.avg(WorkerRow.run_s))
    .where(WorkerRow.pipeline == bindparam("pipeline"), WorkerRow.lease_until > now(), WorkerRow.run_s.is_not(None))
    .group_by(WorkerRow.stage)
)


def video_job(tx: Connection, job_id: str, tenant: str | None = None, detail: Detail = Detail.FINE) -> VideoJob:
    """Return a job that makes a video, with the estimate of its wait as finely as ``detail`` says.

    Raises NotFound, also for a job of another tenant, and for one that makes no video.
    """
    job = job_view(tx, job_id, tenant, detail)
    if "video" not in job.modalities:
        raise NotFound(f"job {job_id} makes no video", field="job_id")
    run_s: dict[str, float] = {} if job.status.is_final else dict(tx.execute(_RUN_S, {"pipeline": job.pipeline}).all())
    return VideoJob(job, _requests(tx, [job.id])[job.id], run_s)


def video_jobs(
    tx: Connection, limit: int, after: str | None = None, *, oldest_first: bool = False, tenant: str | None = None
) -> VideoPage:
    """Return at most ``limit`` jobs that make a video: those behind the job ``after``, the newest first or the oldest.

    Their views have no results. ``tenant``: whose; None: everybody's.
    """
    ids = select(JobRow.id).order_by(JobRow.id if oldest_first else JobRow.id.desc()).limit(limit + 1)
    if tenant is None:
        ids = ids.where(text(MAKES_VIDEO_FOR_ALL))
    else:
        ids = ids.where(JobRow.tenant == tenant, text(MAKES_VIDEO))
    if after is not None:
        ids = ids.where(JobRow.id > after if oldest_first else JobRow.id < after)
    found = tx.execute(ids).scalars().all()
    shown = found[:limit]
    views = {job.id: job for job in views_of(tx, shown, brief=True)}
    requests = _requests(tx, shown)
    jobs = [VideoJob(views[job_id], requests[job_id]) for job_id in shown]
    return VideoPage(jobs, has_more=len(found) > limit)


def _requests(tx: Connection, job_ids: Sequence[str]) -> Mapping[str, Mapping[str, Any] | None]:
    return dict(tx.execute(_REQUESTS, {"ids": listed(job_ids)}).all())
