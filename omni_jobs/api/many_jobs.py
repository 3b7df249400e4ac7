"""What is done to many jobs, group by group: those that match a filter, or those that somebody has chosen by hand."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from omni_jobs.api.action_performer import GROUP
from omni_jobs.api.job_filters import JobAction, JobRetries
from omni_jobs.api.services import Services
from omni_jobs.errors import Conflict, InvalidInput, MissingScope, OmniJobsError
from omni_jobs.http.error_answers import shape_of
from omni_jobs.jobs import WHY_SKIPPED, ActionVerb, GroupVerb, JobFilter, with_skipped
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.views import ErrorView, JobActionView, SkippedJobs

_COUNTED: Final = 1_000  # jobs a query, of a dry run
_MOST_COUNTED: Final = 100_000
_LONGEST_S: Final = 10.0  # of one request; a group that has begun is ended
_ENDED: Final = tuple(state for state in JobState if state.is_final)
_TO_RETRY: Final = tuple(state for state in _ENDED if state is not JobState.COMPLETED)
_Group = Callable[[Sequence[str]], Awaitable[None]]


async def act_on_matching(services: Services, caller: Caller, verb: ActionVerb, action: JobAction) -> JobActionView:
    """Do something to the jobs that match, the newest first, for a bounded time; with ``dry_run`` count them alone.

    ``retry`` takes a ``JobRetries``. Raises InvalidRequest, MissingScope, and the error of the first group.
    """
    wanted, done = matching_of(caller, verb, action), _Done(verb, action.dry_run)

    async def cancel(job_ids: Sequence[str]) -> None:
        act = partial(services.jobs.cancel_all, job_ids, by=caller.actor, states=wanted.states)
        changed = await services.action_threads.run(caller.sees, act)
        done.note_group(job_ids, changed, "cancel")

    async def retry(job_ids: Sequence[str]) -> None:
        given = action if isinstance(action, JobRetries) else JobRetries()
        for job_id in job_ids:
            retried = _retry(services, caller, job_id, given.from_stage, wanted.states, given.version)
            await _noting(done, job_id, retried)

    async def delete(job_ids: Sequence[str]) -> None:
        act = partial(services.jobs.delete_all, job_ids, by=caller.actor, states=wanted.states)
        changed = await services.action_threads.run(caller.sees, act)
        done.note_group(job_ids, changed, "delete")

    async def advance(job_ids: Sequence[str]) -> None:
        act = partial(services.jobs.advance_all, job_ids, by=caller.actor)
        changed = await services.action_threads.run(caller.sees, act)
        done.note_group(job_ids, changed, "advance")

    groups: dict[ActionVerb, _Group] = {"cancel": cancel, "retry": retry, "advance": advance, "delete": delete}
    return await _act(services, caller, wanted, action, done, groups[verb])


def matching_of(caller: Caller, verb: ActionVerb, action: JobAction) -> JobFilter:
    """Return the filter for the jobs that match and to which this may be done. Raises InvalidRequest, MissingScope."""
    if verb == "cancel":
        return action.filter(caller, (JobState.QUEUED, JobState.IN_PROGRESS), "cancelled")
    if verb == "advance":
        return action.filter(caller, (JobState.QUEUED,), "advanced, because it has begun or ended")
    if verb == "delete":
        return action.filter(caller, _ENDED, "deleted: cancel it first")
    from_stage = action.from_stage if isinstance(action, JobRetries) else None
    lacks_stage = action.status is JobState.COMPLETED and from_stage is None
    states = _TO_RETRY if from_stage is None else _ENDED
    return action.filter(caller, states, "retried without from_stage" if lacks_stage else "retried")


async def act_on_chosen(services: Services, caller: Caller, verb: ActionVerb, job_ids: Sequence[str]) -> JobActionView:
    """Do something to these jobs, one after the other, and say what became of them. The caller bounds their number.

    A job that is gone, or another tenant's, is skipped as one that does not exist.
    """
    done = _Done(verb, dry_run=False)
    for job_id in dict.fromkeys(job_ids):
        try:
            if verb == "retry":
                await _noting(done, job_id, _retry(services, caller, job_id, None))
            else:
                act = partial(_change_of(services, verb), job_id, caller.sees, by=caller.actor)
                await _noting(done, job_id, services.action_threads.run(caller.sees, act))
        except OmniJobsError as error:
            if done.matched == 0:
                raise
            done.stopped_by = ErrorView(**error.to_dict())
            break
    return done.view(None)


@dataclass(slots=True)
class _Done:
    """What one request has done so far. ``last`` is the id of the last job that it is done with."""

    verb: ActionVerb
    dry_run: bool
    matched: int = 0
    changed: int = 0
    last: str | None = None
    skipped: Sequence[SkippedJobs] = ()
    stopped_by: ErrorView | None = None

    def note_counted(self, job_ids: Sequence[str]) -> None:
        self.matched += len(job_ids)

    def note_changed(self, job_id: str) -> None:
        self.matched, self.changed, self.last = self.matched + 1, self.changed + 1, job_id

    def note_skipped(self, job_id: str, error: OmniJobsError) -> None:
        """Note a job that was left as it is, and why."""
        self.matched, self.last = self.matched + 1, job_id
        why = SkippedJobs(code=error.code, count=1, job_id=job_id, message=shape_of(error)["message"])
        self.skipped = with_skipped(self.skipped, [why])

    def note_group(self, job_ids: Sequence[str], changed: Set[str], verb: GroupVerb) -> None:
        for job_id in job_ids:
            if job_id in changed:
                self.note_changed(job_id)
            else:
                self.note_skipped(job_id, Conflict(WHY_SKIPPED[verb], field="job_id"))

    def view(self, next_cursor: str | None) -> JobActionView:
        return JobActionView(
            action=self.verb,
            dry_run=self.dry_run,
            matched=self.matched,
            changed=self.changed,
            skipped=list(self.skipped),
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
        size = min(_COUNTED if body.dry_run else GROUP, most - done.matched)
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


def _change_of(services: Services, verb: ActionVerb) -> Callable[..., None]:
    """Return what does this to one job, but for a retry."""
    if verb == "cancel":
        return partial(_cancel, services)
    return services.jobs.advance if verb == "advance" else services.jobs.delete


def _cancel(services: Services, job_id: str, tenant: str | None, *, by: str) -> None:
    """Cancel a job. Raises NotFound, and Conflict for one that has ended, or that somebody has cancelled already."""
    services.jobs.get(job_id, tenant)
    if not services.jobs.cancel_all([job_id], by=by):
        state = services.jobs.get(job_id, tenant).status
        raise Conflict(f"the job is {state.value} already", field="job_id")


async def _retry(
    services: Services,
    caller: Caller,
    job_id: str,
    from_stage: str | None,
    states: Collection[JobState] | None = None,
    version: str | None = None,
) -> None:
    await services.intake.retry(
        job_id,
        from_stage,
        caller.sees,
        caller.limits,
        version=version,
        may_be_high=caller.may(Scope.PRIORITY),
        by=caller.actor,
        states=states,
    )


async def _noting(done: "_Done", job_id: str, act: Awaitable[Any]) -> None:
    """Await what is done to a job, and note whether it was. Raises errors that are not of this job alone."""
    try:
        await act
    except (InvalidInput, MissingScope) as error:
        done.note_skipped(job_id, error)
    else:
        done.note_changed(job_id)
