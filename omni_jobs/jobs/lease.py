"""Leases: a worker's row, renewed by its heartbeat, covers every stage run it holds."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Double, and_, bindparam, delete, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from omni_jobs.database.clock import now
from omni_jobs.database.tables import AttemptErrorRow, JobRow, StageRunRow, WorkerRow, state_is
from omni_jobs.errors import Fenced, SlotTaken, WorkerLost
from omni_jobs.jobs.complete import fail, release
from omni_jobs.jobs.values import Failure, Hint, NewWorker, Outcome, SlotHolder
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits
from omni_jobs.states import JobState, StageRunState

__all__ = ["expire", "forgive", "free_lost", "holder", "register", "renew", "retire", "unwanted"]

FREED_AT_ONCE = 500  # stage runs freed in one transaction

_WANTED = (JobState.QUEUED.value, JobState.IN_PROGRESS.value)
_IS_RUNNING = state_is(StageRunRow.state, StageRunState.RUNNING)

# Built once: each worker runs them every second.
_RENEW = (
    update(WorkerRow)
    .where(WorkerRow.id == bindparam("worker_id"), WorkerRow.lease_until > now())
    .values(renewed_at=now(), lease_until=now() + bindparam("lease_s", type_=Double))
)
_UNWANTED = (
    select(StageRunRow.id)
    .join(JobRow, JobRow.id == StageRunRow.job_id)
    .where(_IS_RUNNING, StageRunRow.owner == bindparam("worker_id"), JobRow.state.not_in(_WANTED))
)


def holder(tx: Connection, slot: str) -> SlotHolder | None:
    """Who has its row in a slot."""
    row = tx.execute(
        select(WorkerRow.__table__, (WorkerRow.lease_until > now()).label("has_lease")).where(WorkerRow.slot == slot)
    ).one_or_none()
    if row is None:
        return None
    return SlotHolder(
        worker_id=row.id,
        host=row.host,
        pid=row.pid,
        pid_space=row.pid_space,
        pid_started=row.pid_started,
        renewed_at=row.renewed_at,
        has_lease=bool(row.has_lease),
        heartbeat_s=row.heartbeat_s,
    )


def register(
    tx: Connection,
    worker: NewWorker,
    lease_s: float,
    *,
    instead_of: SlotHolder | None,
    loading: bool,
    announce_after_s: float,
) -> list[Hint]:
    """Write the worker's row over a predecessor's in the same slot, and free what that one held.

    Raises SlotTaken where that has a lease, unless it is ``instead_of`` and has not renewed since it was seen.
    """
    slot = WorkerRow.slot == worker.slot
    predecessor = tx.execute(select(WorkerRow.id).where(slot).with_for_update()).scalar_one_or_none()
    values = {
        "id": worker.worker_id,
        "pipeline": worker.pipeline,
        "stage": worker.stage,
        "host": worker.host,
        "pid": worker.pid,
        "slots": worker.slots,
        "pipeline_version": worker.pipeline_version,
        "pipeline_digest": worker.pipeline_digest,
        "started_at": now(),
        "renewed_at": now(),
        "lease_until": now() + lease_s,
        "pid_space": worker.pid_space,
        "pid_started": worker.pid_started,
        "loading": loading,
        "heartbeat_s": worker.heartbeat_s,
    }
    dialect_insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    may_go = or_(WorkerRow.id == worker.worker_id, WorkerRow.lease_until <= now())
    if instead_of is not None:
        unchanged = and_(WorkerRow.id == instead_of.worker_id, WorkerRow.renewed_at == instead_of.renewed_at)
        may_go = or_(unchanged, may_go)
    written = tx.execute(
        dialect_insert(WorkerRow)
        .values(slot=worker.slot, **values)
        .on_conflict_do_update(index_elements=[WorkerRow.slot], set_=values, where=may_go)
        .returning(WorkerRow.id)
    )
    if written.scalar_one_or_none() is None:
        raise SlotTaken(f"slot {worker.slot} is taken by worker {predecessor}")
    if predecessor is None or predecessor == worker.worker_id:
        return []
    return _hints(_free(tx, StageRunRow.owner == predecessor, limit=None, announce_after_s=announce_after_s))


def renew(tx: Connection, worker_id: str, lease_s: float) -> list[int]:
    """Prolong a live lease; the ids of its stage runs that are no longer wanted. Raises Fenced."""
    renewed = tx.execute(_RENEW, {"worker_id": worker_id, "lease_s": lease_s})
    if renewed.rowcount == 0:
        raise Fenced(f"the lease of worker {worker_id} is gone")
    return unwanted(tx, worker_id)


def unwanted(tx: Connection, worker_id: str) -> list[int]:
    """The ids of stage runs that this worker runs and their job has no use for."""
    return sorted(tx.execute(_UNWANTED, {"worker_id": worker_id}).scalars())


def retire(tx: Connection, worker_id: str, *, fenced: Fenced | None, announce_after_s: float) -> list[Hint]:
    """Remove the worker's row; hand back what it still holds, or record ``fenced`` as its attempts' error."""
    tx.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))
    held = tx.execute(
        select(StageRunRow.id, StageRunRow.attempt).where(_IS_RUNNING, StageRunRow.owner == worker_id)
    ).all()
    if fenced is not None:
        failures = [Failure(row.id, row.attempt, worker_id, fenced) for row in sorted(held, key=lambda row: row.id)]
        return _hints(fail(tx, failures, announce_after_s=announce_after_s))
    pairs = [(row.id, row.attempt) for row in held]
    return _hints(release(tx, pairs, worker_id, announce_after_s=announce_after_s))


def forgive(tx: Connection, worker_id: str, stage_run_ids: Sequence[int]) -> None:
    """Count these stage runs' loss of a worker that lives as ``fenced`` instead of ``worker_lost``.

    They did not kill it. A stage run that has used up its ``fenced`` retries is passed over, because it may
    be what starves its workers: what else it loses counts as lost. One that has failed stays as its job's
    error tells it.
    """
    of_runs = select(StageRunRow.job_id).where(StageRunRow.id.in_(stage_run_ids))
    tx.execute(select(JobRow.id).where(JobRow.id.in_(of_runs)).order_by(JobRow.id).with_for_update(key_share=True))
    booked = tx.execute(
        select(
            AttemptErrorRow.stage_run_id,
            AttemptErrorRow.attempt,
            AttemptErrorRow.error,
            StageRunRow.failures,
            StageRunRow.retries,
        )
        .join(StageRunRow, StageRunRow.id == AttemptErrorRow.stage_run_id)
        .where(
            AttemptErrorRow.stage_run_id.in_(stage_run_ids),
            AttemptErrorRow.worker == worker_id,
            StageRunRow.state != StageRunState.FAILED.value,
        )
        .order_by(AttemptErrorRow.stage_run_id)
    ).all()
    for row in booked:
        failures = dict(row.failures or {})
        limits = DEFAULT_RETRIES if row.retries is None else RetryLimits(**row.retries)
        times = failures.get("fenced", 0)
        if row.error["code"] != WorkerLost.code or times >= limits.fenced:
            continue
        error = Fenced(f"worker {worker_id} was cut off while it ran this, and lived", stage=row.error.get("stage"))
        this = (AttemptErrorRow.stage_run_id == row.stage_run_id, AttemptErrorRow.attempt == row.attempt)
        tx.execute(update(AttemptErrorRow).where(*this).values(error=error.to_dict()))
        if failures.get("worker_lost", 0) > 0:  # a retry by its user begins to count anew
            failures |= {"worker_lost": failures["worker_lost"] - 1, "fenced": times + 1}
            tx.execute(update(StageRunRow).where(StageRunRow.id == row.stage_run_id).values(failures=failures))


def expire(tx: Connection) -> None:
    """Remove the rows of workers whose lease ran out."""
    gone = (
        select(WorkerRow.id)
        .where(WorkerRow.lease_until <= now())
        .order_by(WorkerRow.id)
        .with_for_update(skip_locked=True)
    )
    tx.execute(delete(WorkerRow).where(WorkerRow.id.in_(gone)))


def free_lost(tx: Connection, *, announce_after_s: float) -> tuple[int, list[Hint]]:
    """Free up to FREED_AT_ONCE stage runs whose owner has no row; how many there were, and their hints."""
    is_gone = ~exists().where(WorkerRow.id == StageRunRow.owner)
    outcomes = _free(tx, is_gone, limit=FREED_AT_ONCE, announce_after_s=announce_after_s)
    return len(outcomes), _hints(outcomes)


def _free(tx: Connection, whose: ColumnElement[bool], *, limit: int | None, announce_after_s: float) -> list[Outcome]:
    lost = tx.execute(
        select(StageRunRow.id, StageRunRow.attempt, StageRunRow.owner).where(_IS_RUNNING, whose).limit(limit)
    ).all()
    failures = [
        Failure(row.id, row.attempt, row.owner, WorkerLost(f"worker {row.owner} was lost while it ran this"))
        for row in sorted(lost, key=lambda row: row.id)
    ]
    return fail(tx, failures, announce_after_s=announce_after_s) if failures else []


def _hints(outcomes: Sequence[Outcome]) -> list[Hint]:
    return [hint for outcome in outcomes for hint in outcome.hints]
