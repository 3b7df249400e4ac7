"""Routes of jobs: submit, get, list, cancel, and fetching what they made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.body import read_json_body
from omni_jobs.api.errors import errors
from omni_jobs.api.examples import JOB, SUBMITS
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Conflict, InvalidRequest, NotFound
from omni_jobs.jobs import StoredArtifact
from omni_jobs.requests import admit
from omni_jobs.states import JobState
from omni_jobs.submission import submit
from omni_jobs.views import JobView, Page

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_JOB_ID = re.compile(r"job-[0-9a-f]{32}")
_ARTIFACT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

_A_JOB: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": JOB}}}}


def _job_id(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise NotFound(f"there is no job {job_id!r:.80}", field="job_id")
    return job_id


JobId = Annotated[str, Depends(_job_id)]


@router.post(
    "",
    status_code=202,
    response_model=JobView,
    responses={
        202: {"description": "Accepted: a new job", "content": {"application/json": {"example": JOB}}},
        200: {"description": "The job this Idempotency-Key named before", "model": JobView},
        **errors(404, 409, 413, 415, 422, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}, "examples": SUBMITS}
            },
        }
    },
)
async def submit_job(
    request: Request,
    response: Response,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None,
        Header(description="1 to 255 visible ASCII characters; the same key and body give the same job again"),
    ] = None,
) -> JobView:
    """Submit a job: everything is checked first, then it is stored, then it waits for its first stage.

    The body is a chat completion's, with `modalities` and parameters by stage; the whole list
    of fields is in docs/api.md.
    """
    if idempotency_key is not None and not re.fullmatch(r"[\x21-\x7e]{1,255}", idempotency_key):
        raise InvalidRequest("must be 1 to 255 visible ASCII characters", field="Idempotency-Key")
    body = await read_json_body(request, services.settings.max_body_bytes)
    job, created = await run_sync(_submit, services, body, idempotency_key, limiter=services.admissions)
    response.status_code = 202 if created else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


def _submit(services: Services, body: bytes, idempotency_key: str | None) -> tuple[JobView, bool]:
    admitted = admit(body, services.pipelines, services.settings, services.renderers)
    submitted = submit(
        admitted,
        jobs=services.jobs,
        store=services.store,
        send=services.relay.send,
        idempotency_key=idempotency_key,
    )
    return services.jobs.get(submitted.job_id), submitted.created


@router.get("/{job_id}", response_model=JobView, responses={**_A_JOB, **errors(404, 503)})
def get_job(job_id: JobId, services: ServicesDep) -> JobView:
    """A job with its stages, and its result once it is completed."""
    return services.jobs.get(job_id)


@router.get("", response_model=Page, responses=errors(422, 503))
def list_jobs(
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(pattern=_JOB_ID.pattern + "$", description="`next_cursor` of a page")] = None,
    status: Annotated[JobState | None, Query()] = None,
    pipeline: Annotated[str | None, Query(pattern="^[a-z][a-z0-9_]{0,39}$")] = None,
) -> Page:
    """Jobs, the newest first."""
    return services.jobs.list(limit=limit, cursor=cursor, state=status, pipeline=pipeline)


@router.post("/{job_id}/cancel", response_model=JobView, responses={**_A_JOB, **errors(404, 503)})
def cancel_job(job_id: JobId, services: ServicesDep) -> JobView:
    """Stop a job: what waits stops at once, what runs as soon as its worker knows (`cancelling`).

    A job that has ended keeps its status.
    """
    services.jobs.cancel(job_id)
    return services.jobs.get(job_id)


@router.get(
    "/{job_id}/artifacts/{name}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The whole artifact", "content": {"application/octet-stream": {}}},
        206: {"description": "The part that Range names"},
        304: {"description": "The client has it: If-None-Match"},
        **errors(404, 409, 416, 503),
    },
)
def get_artifact(
    job_id: JobId,
    name: str,
    services: ServicesDep,
    range_: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """An output of a job. A single range is served; the ETag is the digest of the whole."""
    artifact = _find(services, job_id, name)
    ref = artifact.ref
    headers = {
        "ETag": f'"{ref.digest}"',
        "Content-Disposition": f'inline; filename="{artifact.name}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, immutable, max-age=86400",
        "X-Content-Type-Options": "nosniff",
    }
    if if_none_match is not None and _names(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    span = _span(range_, ref.size) if if_range is None or if_range == headers["ETag"] else None
    start, stop = span or (0, ref.size)
    if span is not None:
        if start >= stop:
            headers["Content-Range"] = f"bytes */{ref.size}"
            return Response(status_code=416, headers=headers)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{ref.size}"
    headers["Content-Length"] = str(stop - start)
    pieces = _cut(services.store.open_stream(ref), start, stop, ref.size)
    return StreamingResponse(pieces, 200 if span is None else 206, headers, media_type=artifact.media_type)


def _find(services: Services, job_id: str, name: str) -> StoredArtifact:
    """Raises NotFound, or Conflict while the job may still make it."""
    if not _ARTIFACT.fullmatch(name):
        raise NotFound(f"job {job_id} has no artifact {name!r:.80}", field="name")
    try:
        return services.jobs.artifact(job_id, name)
    except NotFound:
        status = services.jobs.get(job_id).status
        if status.is_final:
            raise
        raise Conflict(f"job {job_id} is {status.value}: {name} is not there yet", field="name") from None


def _names(header: str, etag: str) -> bool:
    return header.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in header.split(","))


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """From … up to; None, for the whole, where the header is no single byte range."""
    match = _RANGE.fullmatch(header) if header is not None else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _cut(pieces: Iterator[bytes], start: int, stop: int, size: int) -> Iterator[bytes]:
    if (start, stop) == (0, size):
        yield from pieces  # to its end, where the digest is checked
        return
    at = 0
    for piece in pieces:
        cut = piece[max(0, start - at) : max(0, stop - at)]
        at += len(piece)
        if cut:
            yield cut
        if at >= stop:
            return
