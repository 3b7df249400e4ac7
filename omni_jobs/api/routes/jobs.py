"""Routes of jobs: submit, get, list, cancel, retry, delete, and the events of one."""

from __future__ import annotations

import re
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from omni_jobs.api.body import read_body
from omni_jobs.api.error_answers import errors
from omni_jobs.api.examples import EVENTS, JOB, MULTIPART, RETRIED_JOB, SUBMITS
from omni_jobs.api.query_parameters import PlainNumber
from omni_jobs.api.services import ServicesDep
from omni_jobs.api.switch_interval import short_turns
from omni_jobs.api.tenant import tenant_of
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.intake.submit_request import SubmitRequest
from omni_jobs.jobs import as_written
from omni_jobs.requests import cancel_after
from omni_jobs.states import JobState
from omni_jobs.views import EventView, JobView, Page

__all__ = ["JobId", "router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_JOB_ID = re.compile(r"job-[0-9a-f]{32}")

_A_JOB: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": JOB}}}}


async def _job_id(job_id: str) -> str:  # async: others are called on a thread of the pool
    if not _JOB_ID.fullmatch(job_id):
        raise NotFound(f"there is no job {job_id!r:.80}", field="job_id")
    return job_id


JobId = Annotated[str, Depends(_job_id)]


def as_json(view: JobView | Page, status: int = 200) -> Response:
    """The answer, made where this is called: on the event loop all others would wait for a large one."""
    return Response(view.model_dump_json(), status, media_type="application/json")


@router.post(
    "",
    status_code=202,
    response_model=JobView,
    responses={
        202: {"description": "Accepted: a new job", "content": {"application/json": {"example": JOB}}},
        200: {"description": "The job this Idempotency-Key named before", "model": JobView},
        **errors(404, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}, "examples": SUBMITS},
                "multipart/form-data": {"schema": MULTIPART},
            },
        }
    },
)
async def submit_job(
    request: Request,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="1 to 255 visible ASCII characters; the same key and body give the same job again",
            json_schema_extra={"pattern": "^[!-~]{1,255}$"},
        ),
    ] = None,
    cancel_after_: Annotated[
        str | None,
        Header(
            alias="Cancel-After",
            description="the job stops by itself after so many seconds, or 90s, 15m, 2h: 1 s to 30 days",
            examples=["15m"],
        ),
    ] = None,
) -> Response:
    """Submit a job: everything is checked first, then it is stored, then it waits for its first stage.

    The body is a chat completion's, with `modalities` and parameters by stage; the whole list
    of fields is in docs/api.md. A multipart body carries the same JSON in its part `request`, and
    embeddings in place of messages in its part `prompt_embeds`. 429 when as many jobs wait as
    may wait; `Retry-After` says when there is probably room again.
    """
    if idempotency_key is not None and not re.fullmatch(r"[\x21-\x7e]{1,255}", idempotency_key):
        raise InvalidRequest("must be 1 to 255 visible ASCII characters", field="Idempotency-Key")
    body = await read_body(request, services.settings.max_body_bytes)
    result = await services.intake.submit(
        SubmitRequest(
            body.json,
            body.prompt_embeds,
            tenant=tenant_of(request, services.settings),
            idempotency_key=idempotency_key,
            expires_in_s=None if cancel_after_ is None else cancel_after(cancel_after_),
        )
    )
    status = 202 if result.created else 200
    if result.job is not None and result.created_at is not None:
        answer = as_json(as_written(result.job, result.created_at), status)
    else:
        answer = await run_sync(lambda: as_json(services.jobs.get(result.job_id), status))
    answer.headers["Location"] = f"/v1/jobs/{result.job_id}"
    return answer


@router.get("/{job_id}", response_model=JobView, responses={**_A_JOB, **errors(404, 503)})
async def get_job(
    job_id: JobId,
    services: ServicesDep,
    wait: Annotated[
        float,
        Query(ge=0, le=60, description="seconds: answer once the job has ended, at the latest after this time"),
        PlainNumber,
    ] = 0.0,
) -> Response:
    """A job with its stages, and its result once it is completed.

    With `wait` one request takes the place of many: it is answered within a moment of the job's end.
    Look at `status` all the same: when the time is up, or the server stops, the job is told as it is.
    """

    def answer(of_its_end: bool) -> Response | None:
        job = services.jobs.get(job_id)
        return as_json(job) if job.status.is_final or not of_its_end else None

    found = await run_sync(answer, bool(wait))
    while found is None:
        await services.job_waits.until_ended(job_id, within_s=wait)
        found = await run_sync(answer, False)
    return found


@router.get("", response_model=Page, responses=errors(422, 503))
async def list_jobs(
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100), PlainNumber] = 20,
    cursor: Annotated[str | None, Query(pattern=f"^{_JOB_ID.pattern}$", description="`next_cursor` of a page")] = None,
    status: Annotated[JobState | None, Query()] = None,
    pipeline: Annotated[str | None, Query(pattern="^[a-z][a-z0-9_]{0,39}$")] = None,
    error_code: Annotated[
        str | None,
        Query(
            pattern="^[a-z][a-z0-9_]{0,39}$",
            description="of the job's error: `quarantined`, `model_error`, `deadline_exceeded`, …",
            examples=["quarantined"],
        ),
    ] = None,
    brief: Annotated[bool, Query(description="leave every `result` out: it is null")] = False,
) -> Response:
    """Jobs, the newest first.

    A page holds `limit` jobs, or fewer: it ends early where the texts of its jobs (results, progress,
    errors) come to 2 MiB, with one job at least. Go by `next_cursor`, not by the number of jobs.
    """

    def answer() -> Response:
        with short_turns():
            page = services.jobs.list(
                limit=limit, cursor=cursor, state=status, pipeline=pipeline, error_code=error_code, brief=brief
            )
            return as_json(page)

    return await run_sync(answer, limiter=services.lists)


@router.post("/{job_id}/cancel", response_model=JobView, responses={**_A_JOB, **errors(404, 503)})
def cancel_job(job_id: JobId, services: ServicesDep) -> Response:
    """Stop a job: what waits stops at once, what runs as soon as its worker knows (`cancelling`).

    A job that has ended keeps its status.
    """
    services.jobs.cancel(job_id)
    return as_json(services.jobs.get(job_id))


@router.post(
    "/{job_id}/retry",
    response_model=JobView,
    responses={200: {"content": {"application/json": {"example": RETRIED_JOB}}}, **errors(404, 409, 422, 429, 503)},
)
async def retry_job(
    job_id: JobId,
    services: ServicesDep,
    from_stage: Annotated[
        str | None,
        Query(max_length=100, description="run this stage again, and all that follow it", examples=["talker"]),
    ] = None,
) -> Response:
    """Send a job that has ended on again: what did not succeed, or all from a stage on.

    What succeeded before that stage is not computed again. The job keeps its id, is `queued`
    with one more of `retries`, and has no deadline any more. 409 while it has not ended, and
    when what the stage reads is not kept any longer: the message then names a stage that can.
    """
    await services.intake.retry(job_id, from_stage)
    return await run_sync(lambda: as_json(services.jobs.get(job_id)))


@router.delete("/{job_id}", status_code=204, response_class=Response, responses=errors(404, 409, 503))
def delete_job(job_id: JobId, services: ServicesDep) -> None:
    """Delete a job that has ended, with all it made: its rows at once, its objects within seconds.

    409 while it has not ended: cancel it first.
    """
    services.jobs.delete(job_id)


@router.get(
    "/{job_id}/events",
    response_model=list[EventView],
    responses={200: {"content": {"application/json": {"example": EVENTS}}}, **errors(404, 503)},
)
def list_events(job_id: JobId, services: ServicesDep) -> list[EventView]:
    """What became of a job, the oldest first. Events have a time to live of their own."""
    return list(services.jobs.events(job_id))
