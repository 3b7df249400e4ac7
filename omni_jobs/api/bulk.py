"""Many jobs in one request: a job a line, and an answer a line.

Lines are admitted and submitted in groups as they come in, so neither the request nor
its answers are ever in memory whole. The answers are sent once the request has been
read to its end: a client may write all of it before it reads.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from omni_jobs.api.errors import errors
from omni_jobs.api.held import Body
from omni_jobs.api.intake import Wanted, take
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.tenant import tenant_of
from omni_jobs.backlog import Place
from omni_jobs.errors import (
    Conflict,
    InvalidRequest,
    OmniJobsError,
    RequestTooLarge,
    UnsupportedContentType,
)
from omni_jobs.jobs import NewJob, Submitted, new_job_id
from omni_jobs.requests import Admitted, cancel_after, parse
from omni_jobs.submission import forget_media, new_job, store_media

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

CONTENT_TYPES = ("application/jsonl", "application/x-ndjson")
_GROUP_LINES = 256
_GROUP_BYTES = 4 << 20
_PIECE_BYTES = 2 << 10
_ANSWERS_IN_MEMORY = 1 << 20
_LONGEST_MESSAGE = 2000

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
    cancel_after_: Annotated[
        str | None,
        Header(
            alias="Cancel-After",
            description="each line's job stops by itself after so many seconds from its submit on, or 90s, 15m, 2h",
            examples=["15m"],
        ),
    ] = None,
) -> StreamingResponse:
    """Submit many jobs: each line is the body of a job, checked and answered for itself.

    A line that is refused disturbs no other; empty lines are passed over. The answers stand in the
    order of the lines, the last says how many there were. Where the answers come to 64 MiB (a setting),
    the bulk ends: the last answer has an `error` then, which names the last line that was looked at.

    Sent again with its `Idempotency-Key`, for example after a connection was lost, a bulk gives the
    jobs of the first time and makes the rest.
    """
    if idempotency_key is not None and not re.fullmatch(r"[\x21-\x7e]{1,200}", idempotency_key):
        raise InvalidRequest("must be 1 to 200 visible ASCII characters", field="Idempotency-Key")
    tenant = tenant_of(request, services.settings)
    expires_in_s = None if cancel_after_ is None else cancel_after(cancel_after_)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in CONTENT_TYPES:
        raise UnsupportedContentType(f"must be {' or '.join(CONTENT_TYPES)}", field="Content-Type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")
    bulk = _Bulk(services, idempotency_key, tenant, expires_in_s)
    try:
        body: Body = request.state.body
        body.is_streamed = True
        async for group in _groups(_lines(request.stream(), services.settings.max_body_bytes, body), body):
            if not bulk.is_full:  # the rest is read all the same: a client may write all before it reads
                await bulk.submit(group)
            body.hold(-_size(group))
        await run_sync(bulk.end)
    except BaseException:
        with suppress(OSError):  # a full disk, again
            bulk.answers.close()
        raise
    return StreamingResponse(_read(bulk.answers), media_type="application/jsonl")


# The request, line by line.


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in small pieces: nothing but line ends in a large one would keep others waiting."""
    async for chunk in chunks:
        for at in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)


async def _lines(chunks: AsyncIterator[bytes], max_bytes: int, body: Body) -> AsyncIterator[Line]:
    """The lines that are not empty. One that is too long is an error in its place, and not kept."""
    number, kept, dropping = 1, bytearray(), False
    held = 0
    async for chunk in _pieces(chunks):
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


# A group at a time.


class _Bulk:
    """The jobs of a bulk, and the answers to its lines, which take so much room and no more."""

    def __init__(
        self, services: Services, idempotency_key: str | None, tenant: str, expires_in_s: float | None
    ) -> None:
        self._services = services
        self._idempotency_key = idempotency_key
        self._tenant = tenant
        self._expires_in_s = expires_in_s
        self._lines = self._accepted = self._last = self._bytes = 0
        self.answers: IO[bytes] = tempfile.SpooledTemporaryFile(_ANSWERS_IN_MEMORY)  # noqa: SIM115 — its user closes it

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._services.settings.max_bulk_answer_bytes

    async def submit(self, group: Sequence[Line]) -> None:
        """Raises DatabaseUnavailable, StorageUnavailable, StorageFull: the rest is not looked at then."""
        services = self._services
        wanted, told = await run_sync(self._parse, group, limiter=services.bulks)
        admitted: dict[int, Admitted] = {}
        places: dict[int, Place] = {}
        with ExitStack() as stack:
            found = await take(services, list(wanted.values()), stack, services.bulks)
            for number, each in zip(wanted, found, strict=True):
                if isinstance(each, OmniJobsError):
                    told[number] = {"error": _shown(each)}
                else:
                    admitted[number], places[number] = each
            submitted = await run_sync(self._submit, admitted)
            for number, answer in submitted.items():
                places[number].taken |= answer.get("created", False)  # of all who share it, until the next count
        await run_sync(self._tell, group, told | submitted)

    def _parse(self, group: Sequence[Line]) -> tuple[dict[int, Wanted], dict[int, dict[str, Any]]]:
        """By their numbers, the lines that are requests by their form, and the answers to the others."""
        wanted: dict[int, Wanted] = {}
        told: dict[int, dict[str, Any]] = {}
        for number, line in group:
            try:
                if isinstance(line, OmniJobsError):
                    raise line
                form = parse(line, self._services.settings)
            except OmniJobsError as error:
                told[number] = {"error": _shown(error)}
                continue
            key = _key_of(self._idempotency_key, number)
            wanted[number] = Wanted(form, len(line), self._tenant, key, self._expires_in_s)
        return wanted, told

    def _submit(self, admitted: Mapping[int, Admitted]) -> dict[int, dict[str, Any]]:
        """The answers to admitted lines."""
        services = self._services
        jobs: dict[int, NewJob] = {}
        for number, found in admitted.items():
            job_id = new_job_id()
            media = store_media(job_id, found, services.store)
            jobs[number] = new_job(job_id, found, media, tenant=self._tenant, expires_in_s=self._expires_in_s)
        keys = (_key_of(self._idempotency_key, number) for number in jobs)
        submitted = services.jobs.submit_all(list(zip(jobs.values(), keys, strict=True)))
        services.relay.send([hint for answer in submitted if isinstance(answer, Submitted) for hint in answer.hints])
        told: dict[int, dict[str, Any]] = {}
        for (number, job), answer in zip(jobs.items(), submitted, strict=True):
            if isinstance(answer, Conflict) or not answer.created:
                forget_media(job.media, services.store)
            if isinstance(answer, Conflict):
                told[number] = {"error": _shown(answer)}
            else:
                told[number] = {"id": answer.job_id, "created": answer.created}
        return told

    def _tell(self, group: Sequence[Line], told: Mapping[int, Mapping[str, Any]]) -> None:
        self._lines += len(group)
        self._last = group[-1][0]
        self._accepted += sum("id" in answer for answer in told.values())
        for number, _ in group:
            self._write({"line": number, **told[number]})
        self.answers.flush()  # a full disk is met here, before anything was answered

    def end(self) -> None:
        """Write the last answer."""
        last: dict[str, Any] = {
            "lines": self._lines,
            "accepted": self._accepted,
            "refused": self._lines - self._accepted,
        }
        if self.is_full:
            error = RequestTooLarge(
                f"the answers have come to {self._bytes} bytes, and a bulk may have "
                f"{self._services.settings.max_bulk_answer_bytes}: no line after line {self._last} was looked at; "
                "send those as another bulk, with a key of its own",
                field="body",
            )
            last["error"] = _shown(error)
        self._write(last)
        self.answers.flush()

    def _write(self, answer: Mapping[str, Any]) -> None:
        text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        self.answers.write(text)
        self._bytes += len(text)


def _key_of(idempotency_key: str | None, number: int) -> str | None:
    """No client's own key holds a space."""
    return None if idempotency_key is None else f"{idempotency_key} {number}"


# The answers.


def _shown(error: OmniJobsError) -> dict[str, Any]:
    shown = error.to_dict()
    shown["message"] = shown["message"][:_LONGEST_MESSAGE]
    return shown


def _read(answers: IO[bytes]) -> Iterator[bytes]:
    with answers:
        answers.seek(0)
        while chunk := answers.read(64 << 10):
            yield chunk
