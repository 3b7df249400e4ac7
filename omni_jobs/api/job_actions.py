"""Routes that change many jobs: cancel, retry and delete those that match a filter, in groups."""

import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from fastapi import APIRouter, Request

from omni_jobs.api.job_filters import JobAction, JobRetries, body_of, read_action
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Conflict, InvalidInput, MissingScope, OmniJobsError, RequestTooLarge
from omni_jobs.http.body_reader import check_content_type, read_body
from omni_jobs.http.error_answers import errors, shape_of
from omni_jobs.jobs import JobFilter
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.views import ErrorView, JobActionView, SkippedJobs

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_GROUP: Final = 200  # jobs a transaction, while which SQLite's other writers wait
_COUNTED: Final = 1_000  # jobs a query, of a dry run
_MOST_COUNTED: Final = 100_000
_LONGEST_S: Final = 10.0  # of one request; a group that has begun is ended
_MOST_BODY: Final = 64 << 10
_ENDED: Final = tuple(state for state in JobState if state.is_final)
_TO_RETRY: Final = tuple(state for state in _ENDED if state is not JobState.COMPLETED)
_Verb = Literal["cancel", "retry", "delete"]
_Group = Callable[[Sequence[str]], Awaitable[None]]


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
    wanted = body.filter(caller, (JobState.QUEUED, JobState.IN_PROGRESS), "cancelled")
    done = _Done("cancel", body.dry_run)

    async def cancel(job_ids: Sequence[str]) -> None:
        changed = await services.action_threads.run(caller.sees, partial(services.jobs.cancel_all, job_ids))
        done.note_group(job_ids, changed, "the job has ended, or is being cancelled")

    return await _act(services, caller, wanted, body, done, cancel)


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
    lacks_stage = body.status is JobState.COMPLETED and body.from_stage is None
    verb = "retried without from_stage" if lacks_stage else "retried"
    wanted = body.filter(caller, _TO_RETRY if body.from_stage is None else _ENDED, verb)
    done = _Done("retry", body.dry_run)

    async def retry(job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            try:
                await services.intake.retry(
                    job_id, body.from_stage, caller.sees, caller.limits, may_be_high=caller.may(Scope.PRIORITY)
                )
            except (InvalidInput, MissingScope) as error:
                done.note_skipped(job_id, error)
            else:
                done.note_changed(job_id)

    return await _act(services, caller, wanted, body, done, retry)


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
    wanted = body.filter(caller, _ENDED, "deleted: cancel it first")
    done = _Done("delete", body.dry_run)

    async def delete(job_ids: Sequence[str]) -> None:
        changed = await services.action_threads.run(caller.sees, partial(services.jobs.delete_all, job_ids))
        done.note_group(job_ids, changed, "the job has been deleted or retried meanwhile")

    return await _act(services, caller, wanted, body, done, delete)


@dataclass(slots=True)
class _Done:
    """What one request has done so far. ``last`` is the id of the last job that it is done with."""

    verb: _Verb
    dry_run: bool
    matched: int = 0
    changed: int = 0
    last: str | None = None
    skipped: dict[str, SkippedJobs] = field(default_factory=dict)  # by the error's code
    stopped_by: ErrorView | None = None

    def note_counted(self, job_ids: Sequence[str]) -> None:
        self.matched += len(job_ids)

    def note_changed(self, job_id: str) -> None:
        self.matched, self.changed, self.last = self.matched + 1, self.changed + 1, job_id

    def note_skipped(self, job_id: str, error: OmniJobsError) -> None:
        """Note a job that was left as it is, and why. The first error of a code gives the message."""
        self.matched, self.last = self.matched + 1, job_id
        known = self.skipped.get(error.code)
        count = 1 if known is None else known.count + 1
        first = SkippedJobs(code=error.code, count=count, job_id=job_id, message=shape_of(error)["message"])
        self.skipped[error.code] = first if known is None else known.model_copy(update={"count": count})

    def note_group(self, job_ids: Sequence[str], changed: Set[str], otherwise: str) -> None:
        for job_id in job_ids:
            if job_id in changed:
                self.note_changed(job_id)
            else:
                self.note_skipped(job_id, Conflict(otherwise, field="job_id"))

    def view(self, next_cursor: str | None) -> JobActionView:
        return JobActionView(
            action=self.verb,
            dry_run=self.dry_run,
            matched=self.matched,
            changed=self.changed,
            skipped=list(self.skipped.values()),
            next_cursor=next_cursor,
            stopped_by=self.stopped_by,
        )


async def _act(
    services: Services, caller: Caller, wanted: JobFilter, body: JobAction, done: _Done, act: _Group
) -> JobActionView:
    """Find the jobs, group by group, and act on each group. An error ends it, and is raised if nothing was done."""
    most = body.limit or (_MOST_COUNTED if body.dry_run else 1_000)
    ends_at = time.monotonic() + _LONGEST_S
    cursor = body.cursor
    while True:
        size = min(_COUNTED if body.dry_run else _GROUP, most - done.matched)
        find: Callable[[], Any] = partial(services.jobs.matching, wanted, size, cursor)
        done.last = cursor
        try:
            found = await services.action_threads.run(caller.sees, find)
            if body.dry_run:
                done.note_counted(found.ids)
            else:
                await act(found.ids)
        except OmniJobsError as error:
            if done.matched == 0:
                raise
            done.stopped_by = ErrorView(**error.to_dict())
            return done.view(done.last)
        cursor = found.next_cursor
        if cursor is None or done.matched >= most or time.monotonic() >= ends_at:
            return done.view(cursor)


async def _body(request: Request, kind: type[JobAction]) -> Any:
    check_content_type(request, "application/json")
    try:
        body, _ = await read_body(request, _MOST_BODY)
    except RequestTooLarge:
        raise RequestTooLarge(f"the body has more than {_MOST_BODY} bytes", field="body") from None
    return read_action(kind, body)
