"""Many jobs in one request: a job a line, and an answer a line.

Lines are admitted and submitted in groups as they come in, so neither the request nor
its answers are ever in memory whole. The answers are sent once the request has been
read to its end: a client may write all of it before it reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from omni_jobs.api.bulk_answers import Answers
from omni_jobs.api.error_answers import errors, shown, unforeseen
from omni_jobs.api.held_bodies import Body
from omni_jobs.api.intake import Candidate, take_group
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.tenant import tenant_of
from omni_jobs.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    OmniJobsError,
    RequestTooLarge,
    ServerBusy,
    TooSlow,
    UnsupportedContentType,
)
from omni_jobs.intake.backlog import Place
from omni_jobs.intake.group_commit import submit_apart
from omni_jobs.intake.stored_media import forget_media, new_job, store_media
from omni_jobs.jobs import NewJob, SubmitResult, new_job_id
from omni_jobs.requests import Admitted, cancel_after, parse

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

CONTENT_TYPES = ("application/jsonl", "application/x-ndjson")
_GROUP_LINES = 256
_GROUP_BYTES = 4 << 20
_PIECE_BYTES = 2 << 10

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
    the bulk ends: the last answer has an `error` then, which names the last line that was looked at. So it
    does (`server_busy`) where the server has no room for the next line, or for the answers of all bulks.

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
    answers = services.bulk_answers.begin()
    try:
        bulk = _Bulk(services, answers, idempotency_key, tenant, expires_in_s)
        body: Body = request.state.body
        body.is_streamed = True
        stream = request.stream()
        await _submit_all(bulk, stream, body)
        if bulk.ended is not None:
            await _pass_over(stream, services.settings.body_limit_s)
        await run_sync(bulk.end)
    except BaseException:
        answers.close()
        raise
    return _AnswersResponse(answers)


async def _submit_all(bulk: _Bulk, stream: AsyncIterator[bytes], body: Body) -> None:
    lines = _lines(stream, bulk.max_line_bytes, body)
    try:
        async with aclosing(_groups(lines, body)) as groups:
            async for group in groups:
                bulk.check_room()
                await bulk.submit(group)
                body.let_go(_size(group))
    except (RequestTooLarge, ServerBusy) as error:
        if not bulk.has_answers:
            raise
        bulk.ended = error  # its jobs are there: a refusal of the whole would not tell of them


async def _pass_over(stream: AsyncIterator[bytes], within_s: float) -> None:
    """Read the rest and drop it: a client may write all of it before it reads.

    One that goes on for longer is answered all the same, and may find its connection closed while it still writes.
    """
    with suppress(TimeoutError, TooSlow):
        async with asyncio.timeout(within_s):
            async for _ in stream:
                pass


# The request, line by line.


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in small pieces: nothing but line ends in a large one would keep others waiting."""
    async for chunk in chunks:
        for at in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)


async def _lines(chunks: AsyncIterator[bytes], max_bytes: int, body: Body) -> AsyncGenerator[Line | None]:
    """The lines that are not empty. One that is too long is an error in its place, and not kept.

    None where there is no room for more of a line: what is kept of those before has to go first. Raises ServerBusy
    where there is none after that.
    """
    number, kept, dropping = 1, bytearray(), False
    held = 0
    async for chunk in _pieces(chunks):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not (end or kept or dropping):  # an empty line costs next to nothing
                number += 1
                continue
            kept += end
            line = _too_long(max_bytes) if dropping or len(kept) > max_bytes else bytes(kept).strip()
            kept.clear()
            body.let_go(held)  # its receiver holds it from here on
            held = 0
            if line:
                yield number, line
            number, dropping = number + 1, False
        kept += rest
        if len(kept) > max_bytes:
            kept.clear()
            dropping = True
        body.let_go(held)
        held = 0
        if not body.has_room(len(kept)):
            yield None
        body.hold(len(kept))
        held = len(kept)
    if dropping:
        yield number, _too_long(max_bytes)
    elif line := bytes(kept).strip():
        kept.clear()
        body.let_go(held)
        yield number, line


def _too_long(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the line has more than {max_bytes} bytes", field="body")


async def _groups(lines: AsyncIterator[Line | None], body: Body) -> AsyncGenerator[list[Line]]:
    """As many lines as are submitted at once: fewer where there is no room for more."""
    group: list[Line] = []
    size = 0
    async for line in lines:
        more = 0 if line is None else _size([line])
        if group and (line is None or not body.has_room(more)):
            yield group
            group, size = [], 0
        if line is None:
            continue
        body.hold(more)
        group.append(line)
        size += more
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
        self,
        services: Services,
        answers: Answers,
        idempotency_key: str | None,
        tenant: str,
        expires_in_s: float | None,
    ) -> None:
        self._services = services
        self._answers = answers
        self._idempotency_key = idempotency_key
        self._tenant = tenant
        self._expires_in_s = expires_in_s
        self._lines = self._accepted = self._last = 0
        self.ended: OmniJobsError | None = None  # why no further line is to be looked at

    @property
    def max_line_bytes(self) -> int:
        return self._services.settings.max_body_bytes

    @property
    def has_answers(self) -> bool:
        return self._lines > 0

    def check_room(self) -> None:
        """Raises RequestTooLarge and ServerBusy where no more lines may be answered."""
        self._answers.check_room()

    async def submit(self, group: Sequence[Line]) -> None:
        """Raises DatabaseUnavailable, StorageUnavailable, StorageFull: the rest is not looked at then."""
        services = self._services
        candidates, told = await run_sync(self._parse, group, limiter=services.bulks)
        admitted: dict[int, Admitted] = {}
        places: dict[int, Place] = {}
        with ExitStack() as stack:
            taken = await take_group(services, list(candidates.values()), stack)
            for number, admission in zip(candidates, taken, strict=True):
                if isinstance(admission, OmniJobsError):
                    told[number] = _refusal(admission)
                else:
                    admitted[number], places[number] = admission
            submitted = await run_sync(self._submit, admitted) if admitted else {}  # else no transaction
            for number, answer in submitted.items():
                places[number].taken |= answer.get("created", False)  # of all who share it, until the next count
        await run_sync(self._tell, group, told | submitted, limiter=services.bulks)

    def _parse(self, group: Sequence[Line]) -> tuple[dict[int, Candidate], dict[int, dict[str, Any]]]:
        """By their numbers, the lines that are requests by their form, and the answers to the others."""
        candidates: dict[int, Candidate] = {}
        told: dict[int, dict[str, Any]] = {}
        for number, line in group:
            if isinstance(line, OmniJobsError):
                told[number] = _refusal(line)
                continue
            try:
                form = parse(line, self._services.settings)
            except OmniJobsError as error:
                told[number] = _refusal(error)
                continue
            key = _key_of(self._idempotency_key, number)
            candidates[number] = Candidate(form, len(line), self._tenant, key, self._expires_in_s)
        return candidates, told

    def _submit(self, admitted: Mapping[int, Admitted]) -> dict[int, dict[str, Any]]:
        """The answers to admitted lines."""
        services = self._services
        jobs: dict[int, NewJob] = {}
        for number, request in admitted.items():
            job_id = new_job_id()
            media = store_media(job_id, request, services.store)
            jobs[number] = new_job(job_id, request, media, tenant=self._tenant, expires_in_s=self._expires_in_s)
        keys = (_key_of(self._idempotency_key, number) for number in jobs)
        answers = submit_apart(services.jobs.submit_all, list(zip(jobs.values(), keys, strict=True)))
        services.relay.send([hint for answer in answers if isinstance(answer, SubmitResult) for hint in answer.hints])
        told: dict[int, dict[str, Any]] = {}
        for (number, job), answer in zip(jobs.items(), answers, strict=True):
            if isinstance(answer, DatabaseUnavailable):
                raise answer
            if not isinstance(answer, SubmitResult) or not answer.created:
                forget_media(job.media, services.store)
            if isinstance(answer, SubmitResult):
                told[number] = {"id": answer.job_id, "created": answer.created}
            else:
                told[number] = _refusal(answer if isinstance(answer, OmniJobsError) else unforeseen())
        return told

    def _tell(self, group: Sequence[Line], told: Mapping[int, Mapping[str, Any]]) -> None:
        self._lines += len(group)
        self._last = group[-1][0]
        self._accepted += sum("id" in answer for answer in told.values())
        for number, _ in group:
            self._answers.write({"line": number, **told[number]})
        self._answers.flush()  # a full disk is met here, before anything was answered

    def end(self) -> None:
        """Write the last answer."""
        last: dict[str, Any] = {
            "lines": self._lines,
            "accepted": self._accepted,
            "refused": self._lines - self._accepted,
        }
        if self.ended is not None:
            message = (
                f"{self.ended.message}: no line after line {self._last} was looked at; "
                "send those as another bulk, with a key of its own"
            )
            last |= _refusal(type(self.ended)(message, field=self.ended.field))
        self._answers.write(last)
        self._answers.flush()


def _refusal(error: OmniJobsError) -> dict[str, Any]:
    return {"error": shown(error.to_dict())}


def _key_of(idempotency_key: str | None, number: int) -> str | None:
    """No client's own key holds a space."""
    return None if idempotency_key is None else f"{idempotency_key} {number}"


# The answers.


class _AnswersResponse(StreamingResponse):
    """Closes them, however far a client reads."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers.read(), media_type="application/jsonl")
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()
