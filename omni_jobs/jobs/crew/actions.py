"""Actions: cancel, retry, advance or delete the jobs that match a filter, however many, group by group.

    begin → the turns of servers: count, then change group after group → the end;  stop, by somebody;  prune

An action's row says where it stands, so any server goes on with it: ``action_turns`` says how.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, delete, func, null, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.seen_tables import ActionRow
from omni_jobs.database.statement import AnyRow
from omni_jobs.errors import Conflict, NotFound
from omni_jobs.jobs.values import JobFilter
from omni_jobs.states import ActionState
from omni_jobs.views import ErrorView, SkippedJobs

MOST_UNENDED: Final = 20
"""The most actions of those who see the same jobs that go on at a time."""
PRUNED_AT_ONCE: Final = 1000
"""The number of actions that one transaction prunes."""

ActionVerb = Literal["cancel", "retry", "advance", "delete"]


@dataclass(frozen=True, slots=True)
class NewAction:
    """An action that somebody asks for. ``query`` is what the person wrote of ``wanted``, and is shown alone."""

    id: str
    verb: ActionVerb
    wanted: JobFilter
    query: str
    actor: str  # Act.actor
    tenant: str | None  # the one whose jobs the actor sees; None: all


@dataclass(frozen=True, slots=True)
class Action:
    """An action, as its page shows it. ``ActionRow`` explains the fields."""

    id: str
    verb: ActionVerb
    query: str
    actor: str
    tenant: str | None
    state: ActionState
    total: int
    changed: int
    skipped: Sequence[SkippedJobs]
    waiting: Sequence[str]  # the tenants for whose jobs there was no room when it came to them
    trouble: ErrorView | None
    stopped_by: str | None
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None

    @property
    def done_with(self) -> int:
        """The number of jobs that it has changed, or left as they are."""
        return self.changed + sum(each.count for each in self.skipped)


def new_action_id() -> str:
    """Return an id for an action, which nobody guesses."""
    return f"action-{secrets.token_hex(16)}"


def begin(tx: Connection, new: NewAction, act: Act) -> None:
    """Begin an action, unless there is one with its id: a form that is sent twice, or another try.

    Raises Conflict if MOST_UNENDED go on, or if the id is that of another verb's action, and NotFound if it is that of
    somebody else's.
    """
    is_theirs = ActionRow.tenant.is_not_distinct_from(new.tenant)
    columns = (is_theirs.label("is_theirs"), ActionRow.verb)
    known = tx.execute(select(*columns).where(ActionRow.id == new.id)).one_or_none()
    if known is not None:
        if not known.is_theirs:
            raise _not_found(new.id)
        if known.verb != new.verb:
            raise Conflict(f"this form has begun an action already, which is to {known.verb} jobs", field="action")
        return
    if tx.execute(select(func.count()).where(is_theirs, is_unended())).scalar_one() >= MOST_UNENDED:
        raise Conflict(f"{MOST_UNENDED} actions go on already: stop one, or wait for its end")
    values = {name: getattr(new, name) for name in ("id", "verb", "query", "actor", "tenant")}
    values |= {"wanted": wanted_json(new.wanted), "state": ActionState.COUNTING.value}
    values |= {"total": 0, "changed": 0, "skipped": [], "steps": 0}
    values |= dict.fromkeys(("lease_until", "created_at", "changed_at"), now())
    row = insert_or(tx, ActionRow).values(**values).on_conflict_do_nothing().returning(ActionRow.id)
    if tx.execute(row).first() is not None:
        act.note(tx, new.id, new.tenant, verb=new.verb, jobs=new.query)


def stop(tx: Connection, action_id: str, tenant: str | None, act: Act) -> None:
    """Stop an action: no step follows the one that is being taken. One that has ended stays as it is.

    Raises NotFound, also for one of others than the ``tenant``; None sees all.
    """
    found = action(tx, action_id, tenant)
    values = {"state": ActionState.STOPPED.value, "stopped_by": act.actor, "holder": null(), "trouble": null()}
    if set_action(tx, action_id, is_unended(), **values, finished_at=now()):
        act.note(tx, action_id, found.tenant, verb=found.verb, jobs=found.query)


def action(tx: Connection, action_id: str, tenant: str | None = None) -> Action:
    """Return an action. Raises NotFound, also for one of others than the ``tenant``; None sees all."""
    row = tx.execute(_SHOWN.where(ActionRow.id == action_id, *_of(tenant))).one_or_none()
    if row is None:
        raise _not_found(action_id)
    return _shown(row)


def actions(
    tx: Connection, tenant: str | None = None, *, at_most: int = 100, only_unended: bool = False
) -> Sequence[Action]:
    """Return the newest actions first: those of a tenant, or all (None)."""
    conditions = (*_of(tenant), *([is_unended()] if only_unended else []))
    query = _SHOWN.where(*conditions).order_by(ActionRow.created_at.desc(), ActionRow.id.desc()).limit(at_most)
    return [_shown(row) for row in tx.execute(query)]


def prune(tx: Connection, keep_s: float) -> int:
    """Delete up to PRUNED_AT_ONCE actions that ended more than ``keep_s`` ago, and return their number: call again."""
    is_old = (ActionRow.created_at < now() - keep_s, ActionRow.finished_at < now() - keep_s)
    old = select(ActionRow.id).where(*is_old).order_by(ActionRow.created_at).limit(PRUNED_AT_ONCE)
    return tx.execute(delete(ActionRow).where(ActionRow.id.in_(old))).rowcount


def is_unended() -> ColumnElement[bool]:
    """Return the condition that an action goes on."""
    return ActionRow.state.in_([state.value for state in ActionState if not state.is_final])


def set_action(tx: Connection, action_id: str, *conditions: ColumnElement[bool], **values: Any) -> int:
    """Set columns of an action's row if the conditions hold, and return how many rows that are."""
    return tx.execute(update(ActionRow).where(ActionRow.id == action_id, *conditions).values(**values)).rowcount


def wanted_json(wanted: JobFilter) -> dict[str, Any]:
    """Return a filter as an action's row keeps it."""
    values = asdict(wanted)
    del values["except_tenants"]  # of one walk alone
    if wanted.version is None:
        del values["version"]  # which servers of the release before do not know
    return {**values, "states": None if wanted.states is None else sorted(wanted.states)}


_SHOWN = select(*(getattr(ActionRow, name) for name in Action.__dataclass_fields__))


def _shown(row: AnyRow) -> Action:
    values = dict(row._mapping)
    trouble, skipped, state = values["trouble"], values["skipped"], ActionState(values["state"])
    for name in ("created_at", "changed_at", "finished_at"):
        values[name] = None if values[name] is None else as_datetime(values[name])
    values["trouble"] = None if trouble is None else ErrorView(**trouble)
    values["waiting"] = [tenant for tenant, _ in values["waiting"] or ()]
    values["skipped"] = [SkippedJobs(**each) for each in skipped]
    return Action(**{**values, "state": state})


def _of(tenant: str | None) -> Sequence[ColumnElement[bool]]:
    return () if tenant is None else (ActionRow.tenant == tenant,)


def _not_found(action_id: str) -> NotFound:
    return NotFound(f"there is no action {action_id!r:.80}", field="action_id")
