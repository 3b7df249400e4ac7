"""``WaitingRequest``: a request that submits jobs and waits for them, whatever its form. It is a route's dependency.

reserve(caller) → the request's place among those that wait
read(form) → the body, unparsed
submitted(caller, body, asked) → how the answer is wanted, and the ``SubmittedJobs``
"""

from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, Header, Request

from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.submitted_jobs import SubmittedJobs
from omni_jobs.api.until_answered import UntilAnswered
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, TooSlow
from omni_jobs.http.body_reader import check_content_type, read_json
from omni_jobs.http.error_answers import errors
from omni_jobs.http.form_reader import read_form
from omni_jobs.http.places import Connection
from omni_jobs.http.request_parameters import idempotency_key_header
from omni_jobs.jobs import FirstTry, NewJob, SubmitResult, new_try
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.form_body import TakenForm
from omni_jobs.openai.waiting import wait_limit_s
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import Submission, request_digest
from omni_jobs.requests.json_body import parse_body
from omni_jobs.tenants.caller import Caller
from omni_jobs.watch.watch import WatchPlace

WAITING_ERRORS: Final = errors(400, 403, 404, 408, 409, 410, 413, 415, 429, 500, 503, 504)
"""The errors that a route of a ``WaitingRequest`` may answer."""

_JSON, _FORM = "application/json", "multipart/form-data"

T = TypeVar("T")


class SentBody(NamedTuple):
    """A body: what of it is to be parsed, which a form's files are not; for how many bytes it counts; its parser."""

    text: bytes | bytearray
    size: int
    parse: Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class WaitingRequest:
    """A request that submits jobs and waits for them."""

    request: Request
    services: Services
    until_answered: ExitStack
    idempotency_key: str | None
    timeouts: Sequence[str | None]
    retry_count: str | None
    _place: WatchPlace | None = field(default=None, init=False)

    @property
    def connection(self) -> Connection | None:
        """The client's connection."""
        found: Connection | None = self.request.scope["state"].get("connection")
        return found

    def reserve(self, caller: Caller) -> WatchPlace:
        """Reserve a place among the requests that wait, until the answer was sent, unless this one has one already.

        Raises ServerBusy while as many wait as may, so that nothing is read or made for one more.
        """
        if self._place is None:
            place = self.services.watch.reserve(caller.sees, self.connection)
            self._place = self.until_answered.enter_context(place)
        return self._place

    async def read(self, form: TakenForm | None = None) -> SentBody:
        """Read the body: JSON, or this form. Raises what ``read_json`` and ``read_form`` raise."""
        settings = self.services.settings
        most_bytes, most_text_bytes = settings.max_body_bytes, settings.max_text_bytes
        if form is None or (form.or_json and check_content_type(self.request, _FORM, _JSON) == _JSON):
            body = await read_json(self.request, most_bytes)
            return SentBody(body, len(body), partial(parse_body, body, most_bytes, most_text_bytes))
        sent = await read_form(self.request, most_bytes, max_files=form.most_files, max_text_bytes=most_text_bytes)
        text = sent.text_bytes
        return SentBody(text, len(text) + sent.file_bytes, partial(form.fields_of, sent))

    async def submitted(
        self, caller: Caller, body: SentBody, asked: Callable[[Mapping[str, Any], Pipelines], AskedJobs[T]]
    ) -> tuple[T, SubmittedJobs]:
        """Submit what ``asked`` makes of the body, and return how it is to be answered, and the jobs.

        ``asked`` may be called on a thread. Raises what it and the body's ``parse`` raise, and the error of the first
        submission that is refused: then none of the jobs goes on. Unless the request does not wait for the jobs, they
        are left where it ends before its client was told of them.
        """
        services = self.services

        def parse() -> tuple[AskedJobs[T], list[Submission]]:
            sent = body.parse()
            made = asked(sent, services.pipelines)
            return made, made.submissions(sent, body.size, caller, self.idempotency_key)

        more_bytes = body.size - len(body.text)
        wanted, submissions = await services.lanes.run_parsing([body.text], parse, more_bytes=more_bytes)
        path = self.request.scope["route"].path  # the same body asks each route for something else
        digest = request_digest({"path": path, "body": submissions[0].digest})
        first_try, is_new = await self._first_try(caller, digest)
        for number, each in enumerate(submissions):
            key = each.idempotency_key if first_try is None else f"{first_try.key}#{number}"
            submissions[number] = replace(each, digest=digest, idempotency_key=key)
        with in_client_names(wanted.name_of):
            ids = await self._submit(submissions, first_try, is_new=is_new)
        jobs = SubmittedJobs(
            ids=ids,
            jobs=services.jobs,
            watch=services.watch,
            tenant=caller.sees,
            connection=self.connection,
            reserve=partial(self.reserve, caller),
            artifact_threads=services.artifact_threads,
            name_of=wanted.name_of,
            ignored=wanted.ignored,
            has_key=self.idempotency_key is not None or first_try is not None,
            first_try=first_try,
            services=services,
            within_s=wait_limit_s(services.settings.wait_limit_s, self.timeouts),
        )
        if not wanted.goes_on:
            self.until_answered.callback(jobs.leave_unless_told)
        self.request.state.body.end()  # nothing holds it any more, and the answer may be late
        self.request.state.when_answered = jobs.end_try
        return wanted.answer, jobs

    async def _first_try(self, caller: Caller, digest: str) -> tuple[FirstTry | None, bool]:
        """Return the first try that this request is, or repeats, and whether it is a new one.

        None: the client has a key of its own, or does not say how often it sends its requests.
        """
        if self.idempotency_key is not None or self.retry_count is None:
            return None, False
        number = int(self.retry_count)
        taken = await run_sync(self.services.jobs.take_try, caller.tenant, digest, number) if number else None
        return taken or new_try(caller.tenant, digest, number), taken is None

    async def _submit(
        self, submissions: Sequence[Submission], first_try: FirstTry | None, *, is_new: bool
    ) -> list[str]:
        """Submit all or none, and return the ids of the jobs. Raises the first error.

        A job that may exist all the same is left to be cancelled, because its client does not know of it.
        """
        services, notes = self.services, self.services.request_notes
        noted = None if is_new else first_try
        may_exist: list[str] = []

        async def begin(jobs: Sequence[NewJob | OmniJobsError]) -> None:
            nonlocal noted
            for job in jobs:
                if isinstance(job, OmniJobsError):
                    raise job
            if is_new and first_try is not None:
                if self.connection is not None and self.connection.has_left:
                    raise TooSlow("the client has left, and may have sent its request again")
                noted = first_try
                await notes.begin(first_try)
            may_exist.extend(job.job_id for job in jobs if isinstance(job, NewJob))

        try:
            results = await services.intake.submit_many(submissions, wait_for_decoders=False, when_ready=begin)
            return await self._all_of(results)
        except (OmniJobsError, CancelledError) as error:
            if isinstance(error, OmniJobsError) and not error.retryable:
                if noted is not None:
                    notes.end(noted)
            else:
                is_unsure = self.idempotency_key is None and isinstance(error, DatabaseUnavailable | CancelledError)
                notes.leave(may_exist if is_unsure else (), noted)
            raise

    async def _all_of(self, results: Sequence[SubmitResult | OmniJobsError]) -> list[str]:
        """Return the ids of the jobs. Raises the first error, once the jobs that were made are cancelled."""
        jobs = self.services.jobs
        made = [result for result in results if isinstance(result, SubmitResult)]
        if len(made) < len(results):
            if new := [result.job_id for result in made if result.created]:
                await run_sync(jobs.withdraw, new)
            raise next(result for result in results if isinstance(result, OmniJobsError))
        if repeated := [result.job_id for result in made if not result.created]:
            await run_sync(jobs.ask_for, repeated)
        return [result.job_id for result in made]


async def _waiting_request(  # async, because FastAPI calls other functions on a thread
    request: Request,
    services: ServicesDep,
    until_answered: UntilAnswered,
    idempotency_key: Annotated[
        str | None, idempotency_key_header(240, "the same key and body give the answer of the same job again")
    ] = None,
    read_timeout: Annotated[
        str | None, Header(alias="x-stainless-read-timeout", description="the seconds for which the client waits")
    ] = None,
    timeout: Annotated[str | None, Header(alias="x-stainless-timeout", description="the same, of npm's client")] = None,
    retry_count: Annotated[
        str | None,
        Header(
            alias="x-stainless-retry-count",
            pattern="^[0-9]{1,4}$",
            description="how often the client has sent the request before; the first try's job is found again",
        ),
    ] = None,
) -> WaitingRequest:
    timeouts = (read_timeout, timeout)
    return WaitingRequest(request, services, until_answered, idempotency_key, timeouts, retry_count)


WaitingRequestDep = Annotated[WaitingRequest, Depends(_waiting_request)]
