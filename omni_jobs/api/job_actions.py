"""Routes that change many jobs: cancel, retry, advance and delete those that match a filter, in groups."""

from typing import Any, Final

from fastapi import APIRouter, Request

from omni_jobs.api.job_filters import JobAction, JobRetries, body_of, read_action
from omni_jobs.api.many_jobs import act_on_matching
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import ServicesDep
from omni_jobs.errors import RequestTooLarge
from omni_jobs.http.body_reader import check_content_type, read_body
from omni_jobs.http.error_answers import errors
from omni_jobs.views import JobActionView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_MOST_BODY: Final = 64 << 10


@router.post(
    "/cancel",
    response_model=JobActionView,
    responses=errors(403, 408, 413, 415, 503),
    openapi_extra=body_of(JobAction),
)
async def cancel_jobs(caller: Submitter, request: Request, services: ServicesDep) -> JobActionView:
    """Cancel the jobs that match a filter and have not ended, the newest first.

    One answer is for a bounded number of jobs: go on with its `next_cursor`, which may be there when no job matched.
    With `dry_run` the jobs are counted alone. A repeated request changes nothing.
    """
    body: JobAction = await _body(request, JobAction)
    return await act_on_matching(services, caller, "cancel", body)


@router.post(
    "/retry",
    response_model=JobActionView,
    responses=errors(403, 408, 413, 415, 503),
    openapi_extra=body_of(JobRetries),
)
async def retry_jobs(caller: Submitter, request: Request, services: ServicesDep) -> JobActionView:
    """Retry the jobs that match a filter and have failed, expired or been cancelled, the newest first.

    With `from_stage` also those that are completed. Each is retried as alone, so one that cannot be is skipped, and
    the request stops where the backlog is full (`stopped_by`). Otherwise as for `/v1/jobs/cancel`.
    """
    body: JobRetries = await _body(request, JobRetries)
    return await act_on_matching(services, caller, "retry", body)


@router.post(
    "/advance",
    response_model=JobActionView,
    responses=errors(403, 408, 413, 415, 503),
    openapi_extra=body_of(JobAction),
)
async def advance_jobs(caller: Submitter, request: Request, services: ServicesDep) -> JobActionView:
    """Bring the jobs that match a filter and that nobody has started to the front of their tenants' lines.

    They keep the order that they have among them. One that has begun meanwhile, or before which more than 5,000 of its
    tenant's jobs stand, is skipped. Otherwise as for `/v1/jobs/cancel`.
    """
    body: JobAction = await _body(request, JobAction)
    return await act_on_matching(services, caller, "advance", body)


@router.post(
    "/delete",
    response_model=JobActionView,
    responses=errors(403, 408, 413, 415, 503),
    openapi_extra=body_of(JobAction),
)
async def delete_jobs(caller: Submitter, request: Request, services: ServicesDep) -> JobActionView:
    """Delete the jobs that match a filter and have ended, with all their data, the newest first.

    This cannot be undone: count them with `dry_run` first. Otherwise as for `/v1/jobs/cancel`.
    """
    body: JobAction = await _body(request, JobAction)
    return await act_on_matching(services, caller, "delete", body)


async def _body(request: Request, kind: type[JobAction]) -> Any:
    check_content_type(request, "application/json")
    try:
        body, _ = await read_body(request, _MOST_BODY)
    except RequestTooLarge:
        raise RequestTooLarge(f"the body has more than {_MOST_BODY} bytes", field="body") from None
    return read_action(kind, body)
