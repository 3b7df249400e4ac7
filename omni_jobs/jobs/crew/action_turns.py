"""Turns: how a server performs an action, step by step.

    take → take_step, change_group, again and again, while it renews → let_go, or fail

The holder, an API server, has an action for ``ACTION_LEASE_S`` by the database's clock, and longer with each step and
each renewal. The transaction of a step changes the jobs and notes it in the action's row, which it locks first. So a
step is taken once: by a process that dies within it not at all, and by one whose lease another has taken neither. It
raises Fenced once the action has ended, or another holder has taken it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, null, or_, select

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.seen_tables import ActionRow
from omni_jobs.database.statement import AnyRow
from omni_jobs.errors import Conflict, Fenced, OmniJobsError
from omni_jobs.jobs.crew.actions import ActionVerb, is_unended, set_action, wanted_json
from omni_jobs.jobs.crew.skipped import with_skipped
from omni_jobs.jobs.keep.prune import delete_jobs
from omni_jobs.jobs.life.report import cancel_all
from omni_jobs.jobs.order.advance import advance
from omni_jobs.jobs.values import JobFilter, Matches
from omni_jobs.states import ActionState, JobState
from omni_jobs.views import SkippedJobs

ACTION_LEASE_S: Final = 5.0
"""How long an action is its holder's after each step and renewal: so long it waits for a process that died."""

GroupVerb = Literal["cancel", "advance", "delete"]
"""The verbs that change a group of jobs in one transaction; a retry is one of its own, because it is admitted alone."""

WHY_SKIPPED: Final[Mapping[GroupVerb, str]] = {
    "cancel": "the job has begun or ended meanwhile, or is being cancelled",
    "advance": "the job has begun, or very many jobs of its tenant stand before it",
    "delete": "the job has been deleted or retried meanwhile",
}
"""Why such a verb leaves a job of its group as it is."""


class ActionTurn(NamedTuple):
    """What the holder of an action knows of it, as of its last step.

    wanted   the jobs that it walks through: all that match, and later those of one tenant that waited
    cursor   the id of the last job of this walk that it is done with; None: of none yet
    waiting  the tenants for whose jobs there was no room, each with the cursor from which to go on with them. They
             have walks of their own after this one
    """

    id: str
    holder: str
    verb: ActionVerb
    wanted: JobFilter
    actor: str
    tenant: str | None
    state: ActionState
    cursor: str | None
    waiting: Sequence[tuple[str, str | None]]
    steps: int

    @property
    def next_jobs(self) -> JobFilter:
        """The filter of the jobs to find behind the cursor."""
        if self.wanted.tenant is not None:
            return self.wanted
        return replace(self.wanted, except_tenants=frozenset(tenant for tenant, _ in self.waiting))


class ActionStep(NamedTuple):
    """A step of an action.

    cursor   the id of the last job of the walk that the action is done with; None: of none yet
    is_last  no further job matches: the walk ends with this step
    counted  how many more jobs it has counted
    changed  how many more jobs it has changed
    skipped  those that it has left as they are
    waits    the tenant for whose next job there is no room: its jobs wait, while those of others go on; None: no such
    """

    cursor: str | None
    is_last: bool = False
    counted: int = 0
    changed: int = 0
    skipped: Sequence[SkippedJobs] = ()
    waits: str | None = None

    @classmethod
    def to_end_of(cls, found: Matches) -> "ActionStep":
        """Return the step that is done with all jobs that were found."""
        return cls(found.next_cursor, is_last=found.next_cursor is None)


def is_due(tx: Connection) -> bool:
    """Return whether there is an action to take."""
    is_free = (is_unended(), ActionRow.lease_until <= now())
    return tx.execute(select(ActionRow.id).where(*is_free).limit(1)).first() is not None


def take(tx: Connection, holder: str) -> ActionTurn | None:
    """Take the action for which nobody has done anything for longest; return None if there is none to take.

    ``holder`` is a new name for whoever takes it, the same whenever this transaction is tried again.
    """
    is_taken = ActionRow.holder == holder  # by an earlier try, whose answer was lost
    in_order = (case((is_taken, 0), else_=1), ActionRow.lease_until, ActionRow.id)
    free = select(ActionRow).where(is_unended(), or_(is_taken, ActionRow.lease_until <= now())).order_by(*in_order)
    row = tx.execute(free.limit(1).with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    set_action(tx, row.id, holder=holder, lease_until=now() + ACTION_LEASE_S)
    return _turn_of(row, holder)


def renew(tx: Connection, turn: ActionTurn) -> None:
    """Hold an action for longer, while a step of it goes on. Do nothing if it has ended, or is somebody else's.

    Nor if its row is locked: by a step, which holds it for longer itself.
    """
    held = select(ActionRow.id).where(ActionRow.id == turn.id, *_is_held(turn)).with_for_update(skip_locked=True)
    set_action(tx, turn.id, ActionRow.id == held.scalar_subquery(), lease_until=now() + ACTION_LEASE_S)


def take_step(tx: Connection, turn: ActionTurn, change: Callable[[], ActionStep]) -> ActionTurn:
    """Take a step: do its ``change``, note it, and hold the lease for longer. Return the turn for the next step.

    An earlier try of this transaction, whose answer was lost, is not done again. Raises Fenced, as this module says.
    """
    row = tx.execute(select(ActionRow).where(ActionRow.id == turn.id).with_for_update()).one_or_none()
    if row is None or row.holder != turn.holder:
        raise Fenced("the action has ended, or another server has taken it")
    if row.steps != turn.steps:
        return _turn_of(row, turn.holder)
    step = change()
    _write(tx, turn, step, row.skipped)
    return after_step(turn, step)


def change_group(tx: Connection, turn: ActionTurn, found: Matches, act: Act) -> ActionTurn:
    """Take the step that does what an action does to a group of jobs, as far as they are still in the wanted states.

    Raises Fenced, as this module says.
    """
    verb = turn.verb
    if verb == "retry":
        raise ValueError("a retry is admitted, each job by itself")

    def change() -> ActionStep:
        changed = _change(tx, verb, found.ids, turn.wanted.states, act)
        left = [job_id for job_id in found.ids if job_id not in changed]
        step = ActionStep.to_end_of(found)._replace(changed=len(changed))
        if left:
            why = SkippedJobs(code=Conflict.code, count=len(left), job_id=left[0], message=WHY_SKIPPED[verb])
            step = step._replace(skipped=[why])
        return step

    return take_step(tx, turn, change)


def after_step(turn: ActionTurn, step: ActionStep) -> ActionTurn:
    """Return the turn as a step leaves it.

    The walk that counts is followed by the one that changes, and this by one for each tenant whose jobs wait. One that
    finds no room again has its next walk after those of the others. The action is done once nobody's jobs wait.
    """
    turn = turn._replace(cursor=step.cursor, steps=turn.steps + 1)
    if step.waits is not None:
        turn = turn._replace(waiting=(*turn.waiting, (step.waits, step.cursor)))
        if turn.wanted.tenant is None:
            return turn
    elif not step.is_last:
        return turn
    elif turn.state is ActionState.COUNTING:
        return turn._replace(state=ActionState.RUNNING, cursor=None)
    if not turn.waiting:
        return turn._replace(state=ActionState.DONE)
    (tenant, cursor), *others = turn.waiting
    return turn._replace(wanted=replace(turn.wanted, tenant=tenant), cursor=cursor, waiting=tuple(others))


def let_go(tx: Connection, turn: ActionTurn, why: OmniJobsError | None = None, for_s: float = 0.0) -> None:
    """Leave an action to whoever takes it next, after ``for_s`` seconds; ``why``: what it waits for.

    Do nothing if it has ended, or is somebody else's.
    """
    trouble = {} if why is None else {"trouble": why.to_dict()}
    set_action(tx, turn.id, *_is_held(turn), holder=null(), lease_until=now() + for_s, **trouble)


def fail(tx: Connection, turn: ActionTurn, error: OmniJobsError) -> None:
    """End an action that cannot go on. Do nothing if it has ended, or is somebody else's."""
    values = {"state": ActionState.FAILED.value, "trouble": error.to_dict(), "holder": null()}
    set_action(tx, turn.id, *_is_held(turn), **values, finished_at=now())


def _turn_of(row: AnyRow, holder: str) -> ActionTurn:
    given = dict(row.wanted)
    states = None if given["states"] is None else frozenset(map(JobState, given["states"]))
    wanted = JobFilter(**{**given, "states": states, "metadata": tuple(map(tuple, given["metadata"]))})
    waiting = tuple((tenant, cursor) for tenant, cursor in row.waiting or ())
    where = (ActionState(row.state), row.cursor, waiting, row.steps)
    return ActionTurn(row.id, holder, row.verb, wanted, row.actor, row.tenant, *where)


def _is_held(turn: ActionTurn) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return is_unended(), ActionRow.holder == turn.holder


def _change(
    tx: Connection, verb: GroupVerb, job_ids: Sequence[str], states: Collection[JobState] | None, act: Act
) -> set[str]:
    if verb == "advance":  # only jobs in the one state that may be
        return advance(tx, job_ids, act)
    return (cancel_all if verb == "cancel" else delete_jobs)(tx, job_ids, act, states)


def _write(tx: Connection, turn: ActionTurn, step: ActionStep, skipped: Sequence[Mapping[str, Any]]) -> None:
    after = after_step(turn, step)
    known = [SkippedJobs(**each) for each in skipped]
    set_action(
        tx,
        turn.id,
        state=after.state.value,
        wanted=wanted_json(after.wanted),
        cursor=after.cursor,
        waiting=list(after.waiting),
        steps=after.steps,
        total=ActionRow.total + step.counted,
        changed=ActionRow.changed + step.changed,
        skipped=[each.model_dump() for each in with_skipped(known, step.skipped)],
        trouble=null(),
        lease_until=now() + ACTION_LEASE_S,
        changed_at=now(),
        finished_at=now() if after.state.is_final else null(),
    )
