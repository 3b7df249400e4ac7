"""``WaitingRequest``: a request that submits jobs and waits for them, whatever its form. It is a route's dependency.

reserve(caller) → the request's place among those that wait
submitted(caller, body, parse) → what was asked for, and its SubmittedJobs
SubmittedJobs.answer(read) → the answer that ``read`` makes of the completed jobs, in time
"""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, Header, Request, Response

from omni_jobs.api.artifact_answer import artifact_of
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.until_answered import UntilAnswered
from omni_jobs.errors import DatabaseUnavailable, Gone, OmniJobsError, ServerBusy, StillRunning, TooSlow
from omni_jobs.http.error_answers import errors
from omni_jobs.http.places import Connection
from omni_jobs.http.request_parameters import idempotency_key_header
from omni_jobs.jobs import FirstTry, NewJob, StoredArtifact, SubmitResult, new_try
from omni_jobs.openai.job_errors import JobFailure, check_completed, made_once
from omni_jobs.openai.waiting import wait_limit_s
from omni_jobs.requests import Submission, request_digest
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import JobView
from omni_jobs.watch.watch import WatchPlace

WAITING_ERRORS: Final = errors(400, 403, 404, 408, 409, 410, 413, 415, 429, 500, 503, 504)
"""The errors that a route of a ``WaitingRequest`` may answer."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The jobs that one request has submitted, in the order of what it asked for.

    ids        of one job at least
    has_key    whether the same request, sent again, gives these jobs again
    first_try  what stands for the client's own key, where it gave none
    reserve    reserves the request's place among those that wait, unless it has one
    """

    ids: Sequence[str]
    has_key: bool
    first_try: FirstTry | None
    reserve: Callable[[], WatchPlace]
    services: Services
    caller: Caller
    connection: Connection | None
    within_s: float

    async def answer(self, read: Callable[[Sequence[JobView]], Response]) -> Response:
        """Return what ``read`` makes of the jobs once they have completed. It is called on a thread.

        Raises JobFailure for a job that has not completed, also where one goes on after the time for which the
        server or the client waits, and where an error follows that must not make the client submit again. Raises
        ServerBusy where the server stops, and the client may send its request again.
        """
        watch = self.services.watch
        with made_once(self.ids[0], has_key=self.has_key):
            with self.place:
                await watch.until_all_ended(self.ids, self.within_s, self.place)
            try:
                return await self.on_artifact_thread(lambda: read(self._completed()))
            except JobFailure as failure:
                if not isinstance(failure.error, StillRunning):
                    raise
                if self.has_left:
                    self.leave()
                elif watch.is_released and self.has_key:
                    raise ServerBusy("the server stops: send the request again, to get the same job") from None
                raise

    async def on_artifact_thread(self, work: Callable[[], T], *, goes_on: bool = False) -> T:
        """Call ``work``, which reads artifacts, on a thread of those that the caller's tenant may use for that.

        ``goes_on``: it belongs to an answer that has begun. Else it raises ServerBusy if too many of the tenant wait.
        """
        return await self.services.artifact_threads.run(self.caller.sees, work, goes_on=goes_on)

    @property
    def place(self) -> WatchPlace:
        """The request's place among those that wait."""
        return self.reserve()

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its connection."""
        return self.connection is not None and self.connection.has_left

    def leave(self) -> None:
        """Note that the client has left, so that the jobs are cancelled unless somebody asks for them."""
        self.services.request_notes.leave(self.ids, self.first_try)

    async def end_try(self) -> None:
        """Note that the client has its answer, so that a request that comes later is none of its repetitions."""
        if self.first_try is not None and not self.has_left:
            self.services.request_notes.end(self.first_try)

    def see(self, job_id: str) -> JobView:
        """Return a job as the client may see it. Call this on a thread."""
        return self.services.jobs.get(job_id, self.caller.sees)

    def made(self, job: JobView, modality: str) -> StoredArtifact:
        """Return the artifact that a completed job has made of an output. Call this on a thread.

        Raises Gone once the artifact's time to live is over.
        """
        artifact = artifact_of(self.services, job, modality, self.caller.sees)
        if artifact is None:
            raise Gone(f"the {modality} of job {job.id} is not kept any longer")
        return artifact

    def _completed(self) -> list[JobView]:
        jobs = [self.see(job_id) for job_id in self.ids]
        for job in jobs:
            check_completed(job)
        return jobs


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

    async def submitted(
        self,
        caller: Caller,
        body: bytes | bytearray,
        parse: Callable[[], tuple[T, list[Submission]]],
        *,
        more_bytes: int = 0,
    ) -> tuple[T, SubmittedJobs]:
        """Submit what ``parse`` makes of the body, and return the jobs with what ``parse`` says besides.

        ``parse`` may be called on a thread. ``body`` is what it reads, but for files and other text, of ``more_bytes``.
        Raises what it raises, and the error of the first submission that is refused: then none of the jobs goes on.
        """
        services = self.services
        wanted, submissions = await services.lanes.run_parsing([body], parse, more_bytes=more_bytes)
        path = self.request.scope["route"].path  # the same body asks each route for something else
        digest = request_digest({"path": path, "body": submissions[0].digest})
        first_try, is_new = await self._first_try(caller, digest)
        for number, each in enumerate(submissions):
            key = each.idempotency_key if first_try is None else f"{first_try.key}#{number}"
            submissions[number] = replace(each, digest=digest, idempotency_key=key)
        ids = await self._submit(submissions, first_try, is_new=is_new)
        self.request.state.body.end()  # nothing holds it any more, and the answer may be late
        jobs = SubmittedJobs(
            ids=ids,
            has_key=self.idempotency_key is not None or first_try is not None,
            first_try=first_try,
            reserve=partial(self.reserve, caller),
            services=services,
            caller=caller,
            connection=self.connection,
            within_s=wait_limit_s(services.settings.wait_limit_s, self.timeouts),
        )
        self.request.state.when_answered = jobs.end_try
        return wanted, jobs

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


def with_ignored(answer: Response, ignored: Sequence[str]) -> Response:
    """Return the answer, which names in ``X-Ignored`` the parameters that are ignored."""
    if ignored:
        answer.headers["X-Ignored"] = ", ".join(ignored)
    return answer


def named_after(jobs: SubmittedJobs, answer: Response) -> Response:
    """Return the answer, which names its one job in ``X-Job-Id``, because its body has no place for it."""
    answer.headers["X-Job-Id"] = jobs.ids[0]
    return answer
