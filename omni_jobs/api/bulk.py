"""Many jobs in one request: a job a line, and an answer a line.

Lines are admitted and submitted in groups as they come in, so neither the request nor
its answers are ever in memory whole. The answers are sent once the request has been
read to its end: a client may write all of it before it reads.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from omni_jobs.api.errors import errors
from omni_jobs.api.held import Body
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.tenant import tenant_of
from omni_jobs.errors import (
    Conflict,
    InvalidRequest,
    OmniJobsError,
    RequestTooLarge,
    TooManyJobs,
    UnsupportedContentType,
)
from omni_jobs.jobs import NewJob, Submitted, new_job_id
from omni_jobs.requests import Admitted, admit
from omni_jobs.submission import forget_media, new_job, store_media

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

CONTENT_TYPES = ("application/jsonl", "application/x-ndjson")
_GROUP_LINES = 256
_GROUP_BYTES = 4 << 20
_ANSWERS_IN_MEMORY = 1 << 20

Line = tuple[int, bytes | OmniJobsError]
"""Its number, from 1, and what stands in it, or why it was not read."""

_ANSWERS = (
    '{"line": 1, "id": "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f", "created": true}\n'
    '{"line": 2, "error": {"code": "invalid_request", "message": "is required", '
    '"retryable": false, "field": "messages"}}\n'
    '{"lines": 2, "accepted": 1, "refused": 1}\n'
)


@router.post(
    "/bulk",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "An answer a line, and their counts",
            "content": {"application/jsonl": {"example": _ANSWERS}},
        },
        **errors(415, 422, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/jsonl": {
                    "schema": {"type": "string", "description": "the body of POST /v1/jobs, one a line"},
                }
            },
        }
    },
)
async def submit_bulk(
    request: Request,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="1 to 200 visible ASCII characters; each line's own key is made of it and of its number",
            json_schema_extra={"pattern": "^[!-~]{1,200}$"},
        ),
    ] = None,
) -> StreamingResponse:
    """Submit many jobs: each line is the body of a job, checked and answered for itself.

    A line that is refused disturbs no other; empty lines are passed over. The answers stand in the
    order of the lines, the last says how many there were. Sent again with its `Idempotency-Key`, for
    example after a connection was lost, a bulk gives the jobs of the first time and makes the rest.
    """
    if idempotency_key is not None and not re.fullmatch(r"[\x21-\x7e]{1,200}", idempotency_key):
        raise InvalidRequest("must be 1 to 200 visible ASCII characters", field="Idempotency-Key")
    tenant = tenant_of(request, services.settings)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in CONTENT_TYPES:
        raise UnsupportedContentType(f"must be {' or '.join(CONTENT_TYPES)}", field="Content-Type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")
    answers = tempfile.SpooledTemporaryFile(_ANSWERS_IN_MEMORY)  # noqa: SIM115 — closed once it was sent
    try:
        lines = accepted = 0
        body: Body = request.state.body
        body.is_streamed = True
        async for group in _groups(_lines(request.stream(), services.settings.max_body_bytes, body), body):
            lines += len(group)
            accepted += await run_sync(
                _submit_group, services, group, idempotency_key, tenant, answers, limiter=services.bulks
            )
            body.hold(-_size(group))
        _write(answers, {"lines": lines, "accepted": accepted, "refused": lines - accepted})
    except BaseException:
        answers.close()
        raise
    return StreamingResponse(_read(answers), media_type="application/jsonl")


# The request, line by line.


async def _lines(chunks: AsyncIterator[bytes], max_bytes: int, body: Body) -> AsyncIterator[Line]:
    """The lines that are not empty. One that is too long is an error in its place, and not kept."""
    number, kept, dropping = 1, bytearray(), False
    held = 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            kept += end
            if dropping or len(kept) > max_bytes:
                yield number, _too_long(max_bytes)
            elif line := bytes(kept).strip():
                yield number, line
            number, dropping = number + 1, False
            kept.clear()
        kept += rest
        if len(kept) > max_bytes:
            kept.clear()
            dropping = True
        body.hold(len(kept) - held)
        held = len(kept)
    if dropping:
        yield number, _too_long(max_bytes)
    elif line := bytes(kept).strip():
        yield number, line


def _too_long(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the line has more than {max_bytes} bytes", field="body")


async def _groups(lines: AsyncIterator[Line], body: Body) -> AsyncIterator[list[Line]]:
    group: list[Line] = []
    size = 0
    async for line in lines:
        group.append(line)
        body.hold(_size([line]))
        size += _size([line])
        if len(group) >= _GROUP_LINES or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(group: Sequence[Line]) -> int:
    return sum(len(line) for _, line in group if isinstance(line, bytes))


# One group.


def _submit_group(
    services: Services, group: Sequence[Line], idempotency_key: str | None, tenant: str, answers: IO[bytes]
) -> int:
    """How many were accepted. Raises DatabaseUnavailable, StorageUnavailable: the rest is not looked at then."""
    told: dict[int, dict[str, Any]] = {}
    admitted: dict[int, Admitted] = {}
    for number, line in group:
        try:
            if isinstance(line, OmniJobsError):
                raise line
            admitted[number] = admit(
                line, services.pipelines, services.settings, services.renderers, wall=services.wall
            )
        except OmniJobsError as error:
            told[number] = {"error": error.to_dict()}
    with ExitStack() as stack:
        for number, refusal in _without_place(services, admitted, idempotency_key, tenant, stack).items():
            told[number] = {"error": refusal.to_dict()}
            del admitted[number]
        told |= _submit(services, admitted, idempotency_key, tenant)
    for number, _ in group:
        _write(answers, {"line": number, **told[number]})
    return sum("id" in answer for answer in told.values())


def _without_place(
    services: Services, admitted: dict[int, Admitted], idempotency_key: str | None, tenant: str, stack: ExitStack
) -> dict[int, TooManyJobs]:
    """The lines for which there is no room; the others have their places until ``stack`` is closed."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, found in admitted.items():
        numbers[found.pipeline.name].append(number)
    refused: dict[int, TooManyJobs] = {}
    for pipeline, of_pipeline in numbers.items():
        try:
            place = stack.enter_context(services.backlog.place(pipeline, tenant, len(of_pipeline)))
            place.taken = True  # a few too many until the next count, should a line be known or fail
        except TooManyJobs as error:
            for number in of_pipeline:
                key = _key_of(idempotency_key, number)
                if key is None or not services.jobs.is_known(tenant, key):
                    refused[number] = error
    return refused


def _submit(
    services: Services, admitted: dict[int, Admitted], idempotency_key: str | None, tenant: str
) -> dict[int, dict[str, Any]]:
    """The answers to admitted lines."""
    wishes: dict[int, NewJob] = {}
    for number, found in admitted.items():
        job_id = new_job_id()
        media = store_media(job_id, found, services.store)
        wishes[number] = new_job(job_id, found, media, tenant=tenant)
    submitted = services.jobs.submit_all([(job, _key_of(idempotency_key, number)) for number, job in wishes.items()])
    services.relay.send([hint for answer in submitted if isinstance(answer, Submitted) for hint in answer.hints])
    told: dict[int, dict[str, Any]] = {}
    for (number, job), answer in zip(wishes.items(), submitted, strict=True):
        if isinstance(answer, Conflict) or not answer.created:
            forget_media(job.media, services.store)
        if isinstance(answer, Conflict):
            told[number] = {"error": answer.to_dict()}
        else:
            told[number] = {"id": answer.job_id, "created": answer.created}
    return told


def _key_of(idempotency_key: str | None, number: int) -> str | None:
    """No client's own key holds a space."""
    return None if idempotency_key is None else f"{idempotency_key} {number}"


# The answers.


def _write(answers: IO[bytes], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def _read(answers: IO[bytes]) -> Iterator[bytes]:
    with answers:
        answers.seek(0)
        while chunk := answers.read(64 << 10):
            yield chunk
