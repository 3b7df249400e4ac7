"""The route of bulks: submits many jobs in one request, a job a line, and answers each with a line.

Groups of lines are submitted as they come in, so neither the request nor its answers are ever in memory whole. The
answers are sent once the request has been read to its end, because a client may write all of it before it reads.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from omni_jobs.api.bulk_answers import Answers
from omni_jobs.api.bulk_lines import BulkLine, groups_of_lines, size_of
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import (
    DatabaseUnavailable,
    OmniJobsError,
    RequestTooLarge,
    ServerBusy,
    StorageUnavailable,
    TooSlow,
    Unauthenticated,
)
from omni_jobs.http.body_reader import check_content_type
from omni_jobs.http.error_answers import errors, shape_of
from omni_jobs.http.held_bodies import Body
from omni_jobs.http.request_parameters import CancelAfter, client_network, idempotency_key_header
from omni_jobs.intake.kept_errors import results_of
from omni_jobs.jobs import SubmitResult
from omni_jobs.requests import Submission, cancel_after, parse
from omni_jobs.tenants.caller import Caller

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

logger = logging.getLogger(__name__)

_MOST_LINKS = 8
_OUTAGES = (DatabaseUnavailable, StorageUnavailable)

CONTENT_TYPES = ("application/jsonl", "application/x-ndjson")

_ANSWERS = (
    '{"line": 1, "id": "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f", "created": true}\n'
    '{"line": 2, "error": {"code": "invalid_request", "message": "is required", '
    '"type": "invalid_request_error", "param": "messages", "field": "messages", "retryable": false}}\n'
    '{"lines": 2, "accepted": 1, "refused": 1}\n'
)


async def _answers(services: ServicesDep) -> AsyncIterator[Answers]:
    """Provide the answers of a bulk, and delete them once they are sent or the client has left."""
    with closing(Answers(services.bulk_answers)) as answers:
        yield answers


@router.post(
    "/bulk",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "An answer a line, and their counts",
            "content": {"application/jsonl": {"example": _ANSWERS}},
        },
        **errors(403, 408, 415, 503),
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
    caller: Submitter,
    request: Request,
    services: ServicesDep,
    answers: Annotated[Answers, Depends(_answers)],
    idempotency_key: Annotated[
        str | None, idempotency_key_header(200, "the key of each line is made of it and of the line's number")
    ] = None,
    cancel_after_: CancelAfter = None,
) -> StreamingResponse:
    """Submit many jobs: each line is the body of a job, checked and answered for itself.

    A line that is refused disturbs no other; empty lines are passed over. The answers stand in the
    order of the lines, and the last answer says how many lines there were. The bulk ends early where its
    answers come to 64 MiB (a setting), where the server has no room for the next line or for the
    answers of all bulks (`server_busy`), where the database or the object store stays away, and where the
    lines pause for too long (`too_slow`). Then the last answer has an `error`, which names the last line
    that was answered; if no job was accepted, the whole bulk may be refused with it.

    The key and the limits are looked up again while the lines come: once the key is revoked or has expired,
    no further line is submitted.

    `Cancel-After` counts from each line's own submit. Sent again with its `Idempotency-Key`, after whatever
    broke it off, a bulk returns the jobs of the first time and makes the rest.
    """
    check_content_type(request, *CONTENT_TYPES)
    expires_in_s = None if cancel_after_ is None else cancel_after(cancel_after_)
    stream = request.stream()
    bulk = _Bulk(services, answers, request, idempotency_key, expires_in_s)
    await bulk.submit_all(stream, request.state.body)
    if bulk.ended_by is not None and not isinstance(bulk.ended_by, TooSlow):
        await _read_and_drop(stream, services.settings.body_limit_s)
    await bulk.end()
    return StreamingResponse(answers.read(), media_type="application/jsonl")


async def _read_and_drop(stream: AsyncIterator[bytes], within_s: float) -> None:
    """Read the rest of a body and drop it, because a client may write all of it before it reads.

    A client that writes for longer than ``within_s`` is answered all the same. It may find its connection closed while
    it still writes.
    """
    with suppress(TimeoutError, TooSlow):
        async with asyncio.timeout(within_s):
            async for _ in stream:
                pass


@dataclass(eq=False, repr=False)
class _Bulk:
    """The jobs of one bulk, and the answers to its lines."""

    services: Services
    answers: Answers
    request: Request  # tells who the caller is, whose limits and scopes are those of the moment
    key: str | None  # of which each line's key is made
    expires_in_s: float | None  # after its line's submit, each job stops
    lines: int = 0
    accepted: int = 0
    last: int = 0  # the number of the last line that was answered
    ended_by: OmniJobsError | None = None  # the reason why no further line is submitted

    async def submit_all(self, stream: AsyncIterator[bytes], body: Body) -> None:
        """Submit the lines of a body and write their answers, until an error ends the bulk early: ``ended_by``.

        Raises that error if no line is answered, and if a service is away and no line was accepted.
        """
        body.is_streamed = True
        groups_of_body = groups_of_lines(stream, self.services.settings.max_body_bytes, body)
        try:
            async with aclosing(groups_of_body) as groups:
                async for group in groups:
                    self.answers.check_room()
                    try:
                        await self._submit(group)
                    finally:
                        body.let_go(size_of(group))
        except (RequestTooLarge, ServerBusy, Unauthenticated, TooSlow, *_OUTAGES) as error:
            if not self.lines or (isinstance(error, _OUTAGES) and not self.accepted):
                raise
            if isinstance(error, _OUTAGES):
                logger.error("a bulk has ended after line %d: %s", self.last, error)
            self.ended_by = error  # no refusal of the whole bulk, because it would hide the jobs that were made

    async def _submit(self, group: Sequence[BulkLine]) -> None:
        """Submit a group of lines and write their answers.

        Raises Unauthenticated, ServerBusy and DatabaseUnavailable before any of them is submitted, and the first error
        of a service that is away once they are answered: each later group would wait for that service again.
        """
        caller = await self.services.callers.look_up(self.request.headers, None, client_network(self.request))
        parse_all = partial(results_of, partial(self._parsed, caller), group)
        texts = [line for _, line in group if isinstance(line, bytes)]
        parsed = await self.services.lanes.run_parsing(texts, parse_all)
        numbered = [(number, each) for (number, _), each in zip(group, parsed, strict=True)]
        for part in _parts(numbered):
            await self._submit_part(part)

    async def _submit_part(self, part: Sequence[tuple[int, Submission | OmniJobsError]]) -> None:
        """Submit some lines of a group and write their answers. Raises what ``_submit`` raises."""
        submissions = [each for _, each in part if isinstance(each, Submission)]
        results = iter(await self.services.intake.submit_many(submissions) if submissions else ())
        answers = [(number, each if isinstance(each, OmniJobsError) else next(results)) for number, each in part]
        self.lines += len(part)
        self.last = part[-1][0]
        self.accepted += sum(isinstance(answer, SubmitResult) for _, answer in answers)
        await self._write([{"line": number} | _answer(answer) for number, answer in answers])
        for _, answer in answers:
            if isinstance(answer, _OUTAGES):
                raise answer

    def _parsed(self, caller: Caller, line: BulkLine) -> Submission:
        number, text = line
        if isinstance(text, OmniJobsError):
            raise text
        return parse(
            text,
            self.services.settings,
            caller=caller,
            # No client can send such a key itself, because its own has no space.
            idempotency_key=None if self.key is None else f"{self.key} {number}",
            expires_in_s=self.expires_in_s,
        )

    async def end(self) -> None:
        """Write the last answer: how many lines there were, and why the bulk ended early if it did."""
        refused = self.lines - self.accepted
        last: dict[str, Any] = {"lines": self.lines, "accepted": self.accepted, "refused": refused}
        if self.ended_by is not None:
            message = f"{self.ended_by.message}: no line after line {self.last} was submitted; {self._advice()}"
            last |= _answer(type(self.ended_by)(message, field=self.ended_by.field))
        await self._write([last])

    def _advice(self) -> str:
        """Return what the client of a bulk that has ended early should do."""
        if isinstance(self.ended_by, RequestTooLarge):  # sent again, it would end at the same line
            return "send the rest as another bulk, with a key of its own"
        if self.key is not None:
            return "sent again with the same Idempotency-Key, the bulk makes the jobs that are missing"
        return "send the rest, and the lines whose error is retryable, as another bulk"

    async def _write(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Write answers to the disk. A full disk raises its OSError here, before anything was sent to the client."""
        await run_sync(self.answers.write, answers, limiter=self.services.bulk_answers.writes)


def _parts(
    lines: Sequence[tuple[int, Submission | OmniJobsError]],
) -> Iterator[Sequence[tuple[int, Submission | OmniJobsError]]]:
    """Yield the lines in parts that name few media by URL, because all that are fetched for a part are in memory."""
    begin = links = 0
    for at, (_, each) in enumerate(lines):
        more = each.request.links if isinstance(each, Submission) else 0
        if at > begin and more and links + more > _MOST_LINKS:
            yield lines[begin:at]
            begin, links = at, 0
        links += more
    yield lines[begin:]


def _answer(result: SubmitResult | OmniJobsError) -> dict[str, Any]:
    if isinstance(result, OmniJobsError):
        return {"error": shape_of(result)}
    return {"id": result.job_id, "created": result.created}
