"""Leases: a worker's row, which its heartbeat renews, covers every stage run that the worker holds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.tables import AttemptErrorRow, JobRow, JsonText, StageRunRow, WatchedJobRow, WorkerRow, state_is
from omni_jobs.errors import Fenced, SlotTaken, WorkerLost
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs.keep import stage_samples
from omni_jobs.jobs.life.fingerprint import fingerprint
from omni_jobs.jobs.life.report import report
from omni_jobs.jobs.life.successors import ACTIVE
from omni_jobs.jobs.order.down_engines import note_down, note_serving
from omni_jobs.jobs.order.paused_stages import is_paused
from omni_jobs.jobs.values import Failure, NewWorker, Outcome, Release, Renewal, SlotHolder, Wishes
from omni_jobs.metrics.stage_stats import WorkerStats
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits, is_last_chance
from omni_jobs.states import StageRunState
from omni_jobs.views import WorkerView

FREED_AT_ONCE = 500
"""The number of stage runs that one transaction frees; the next may find more."""

_IS_RUNNING = state_is(StageRunRow.state, StageRunState.RUNNING)

_SERVES = and_(WorkerRow.lease_until > now(), WorkerRow.loading.is_(False))

# Built once, because each worker runs them every second. A lease that is over is renewed as well: as long as the row is
# there, nobody has taken the slot or the stage runs.
_RENEW = (
    update(WorkerRow)
    .where(WorkerRow.id == bindparam("worker_id"))
    .values(
        renewed_at=now(),
        lease_until=now() + bindparam("lease_s", type_=Double),
        run_s=func.coalesce(bindparam("latest_run_s", type_=Double), WorkerRow.run_s),
        stats=func.coalesce(bindparam("newest_stats", type_=JsonText), WorkerRow.stats),
    )
    .returning(WorkerRow.pipeline, WorkerRow.pipeline_digest, WorkerRow.stage, WorkerRow.drained_at)
)
_IS_UNWANTED = JobRow.state.not_in([state.value for state in ACTIVE])
_WISHES = (
    select(StageRunRow.id, _IS_UNWANTED.label("is_unwanted"), WatchedJobRow.since)
    .join(JobRow, JobRow.id == StageRunRow.job_id)
    .outerjoin(WatchedJobRow, and_(WatchedJobRow.job_id == JobRow.id, WatchedJobRow.until > now()))
    .where(
        _IS_RUNNING,
        StageRunRow.owner == bindparam("worker_id"),
        or_(_IS_UNWANTED, WatchedJobRow.since.is_not(None)),
    )
    .order_by(StageRunRow.id)
)


def slot_holder(tx: Connection, slot: str) -> SlotHolder | None:
    """Return the worker, live or dead, that is recorded in this slot; None if the slot is free."""
    holder = select(
        WorkerRow.id.label("worker_id"),
        WorkerRow.host,
        WorkerRow.pid,
        WorkerRow.pid_space,
        WorkerRow.pid_started,
        WorkerRow.renewed_at,
        (WorkerRow.lease_until > now()).label("has_lease"),
        WorkerRow.heartbeat_s,
    ).where(WorkerRow.slot == slot)
    row = tx.execute(holder).one_or_none()
    return None if row is None else SlotHolder(*row)


def register_worker(
    tx: Connection,
    worker: NewWorker,
    lease_s: float,
    *,
    instead_of: SlotHolder | None = None,
    loading: bool = False,
) -> set[str]:
    """Give a worker its slot and its lease, and return the queues to ring for what its predecessor held.

    Call it with ``loading`` before the worker loads its engine: it then holds the slot, and does not count as a live
    worker. Call it without when the engine is loaded, before the first claim. A predecessor in the slot is fenced, and
    its stage runs are freed, if its lease is over, or if it is ``instead_of``: the slot's holder as the caller read it
    and found it dead. Raises SlotTaken when another worker has the slot and a lease, or ``instead_of`` has renewed its
    lease since it was read.
    """
    slot = WorkerRow.slot == worker.slot
    columns = (WorkerRow.id, WorkerRow.pipeline, WorkerRow.stage, WorkerRow.stats)
    counted = tx.execute(select(*columns).where(slot).with_for_update()).one_or_none()
    predecessor = None if counted is None else counted.id
    values = (
        asdict(worker)
        | worker.stage.columns
        | {
            "loading": loading,
            "started_at": now(),
            "renewed_at": now(),
            "lease_until": now() + lease_s,
        }
    )
    values["id"] = values.pop("worker_id")
    is_replaceable = or_(WorkerRow.id == worker.worker_id, WorkerRow.lease_until <= now())
    if instead_of is not None:
        unchanged = and_(WorkerRow.id == instead_of.worker_id, WorkerRow.renewed_at == instead_of.renewed_at)
        is_replaceable = or_(unchanged, is_replaceable)
    # The turn of another pipeline's worker says nothing, nor do a predecessor's counts.
    kept = {
        "turn": case((WorkerRow.pipeline == worker.stage.pipeline.name, WorkerRow.turn)),
        "drained_at": case((WorkerRow.id == worker.worker_id, WorkerRow.drained_at)),  # also while it loaded
        "stats": case((WorkerRow.id == worker.worker_id, WorkerRow.stats)),
    }
    written = tx.execute(
        insert_or(tx, WorkerRow)
        .values(**values)
        .on_conflict_do_update(index_elements=[WorkerRow.slot], set_=values | kept, where=is_replaceable)
        .returning(WorkerRow.id)
    )
    if written.scalar_one_or_none() is None:
        raise SlotTaken(f"slot {worker.slot} is taken by worker {predecessor}")
    if not loading:
        note_serving(tx, worker.slot)
    if counted is None or predecessor == worker.worker_id:
        return set()
    stage_samples.note_final_of(tx, *counted)
    return _queues(_free(tx, StageRunRow.owner == predecessor))


def renew(
    tx: Connection,
    worker_id: str,
    lease_s: float,
    run_s: float | None = None,
    stats: Mapping[str, Any] | None = None,
) -> Renewal:
    """Extend the worker's lease. Return its users' wishes, and whether its stage is paused or it is drained.

    ``run_s`` is how long a stage run took this worker lately, from claim to end; None if it does not know. ``stats``
    is what it has counted since its start, ``WorkerStats`` as JSON; None: what it gave last stays. A lease
    that ran out, while the database was away perhaps, begins anew if nobody has taken the stage runs. Raises Fenced
    when a rescuer or the slot's new worker has; the worker must stop then and write nothing.
    """
    parameters = {"worker_id": worker_id, "lease_s": lease_s, "latest_run_s": run_s, "newest_stats": stats}
    renewed = tx.execute(_RENEW, parameters).one_or_none()
    if renewed is None:
        raise Fenced(f"the lease of worker {worker_id} is gone")
    stage = StageId(PipelineId(renewed.pipeline, renewed.pipeline_digest), renewed.stage)
    return Renewal(wishes(tx, worker_id), renewed.drained_at is not None or is_paused(tx, stage))


def wishes(tx: Connection, worker_id: str) -> Wishes:
    """Return which of the stage runs that this worker runs it must stop, and which of them are watched."""
    rows = tx.execute(_WISHES, {"worker_id": worker_id}).all()
    unwanted = [row.id for row in rows if row.is_unwanted]
    return Wishes(unwanted, {row.id: row.since for row in rows if row.since is not None and not row.is_unwanted})


def retire_worker(
    tx: Connection,
    worker_id: str,
    *,
    fenced: Fenced | None = None,
    stats: Mapping[str, Any] | None = None,
    engine_down: bool = False,
) -> set[str]:
    """End a worker's lease, queue the stage runs that it still holds, and return the queues to ring.

    ``stats`` is what it has counted since its start, as ``renew`` takes it. ``engine_down``: it ends because its engine
    died, hangs or cannot be loaded.

    Also a worker without a lease may call it. A fenced worker passes the error that says so as ``fenced``. This is
    recorded as the failure of its attempts, and counts against their ``fenced`` retries.
    """
    is_its = WorkerRow.id == worker_id
    if engine_down:
        note_down(tx, worker_id)
    if stats is not None:
        tx.execute(update(WorkerRow).where(is_its).values(stats=stats))
    stage_samples.note_final(tx, is_its)
    tx.execute(delete(WorkerRow).where(is_its))
    attempts = select(StageRunRow.id, StageRunRow.attempt).where(_IS_RUNNING, StageRunRow.owner == worker_id)
    held = sorted(tx.execute(attempts))
    ends = [Release(*each, worker_id) if fenced is None else Failure(*each, worker_id, fenced) for each in held]
    return _queues(report(tx, ends))


def forgive(tx: Connection, worker_id: str) -> None:
    """Recount the ``worker_lost`` failures of a fenced worker's stage runs as ``fenced``, because it lives.

    The worker calls it after ``retire_worker``. It also holds for stage runs that the worker never knew of, because the
    answer to their claim was lost. A stage run without ``fenced`` retries left keeps ``worker_lost``, because it may be
    what keeps its workers from renewing. So does one that has failed, because its job's error quotes it.
    """
    at_worker = select(AttemptErrorRow.stage_run_id).where(AttemptErrorRow.worker == worker_id)
    of_runs = select(StageRunRow.job_id).where(StageRunRow.id.in_(at_worker))
    tx.execute(select(JobRow.id).where(JobRow.id.in_(of_runs)).order_by(JobRow.id).with_for_update(key_share=True))
    errors = tx.execute(
        select(
            AttemptErrorRow.stage_run_id,
            AttemptErrorRow.attempt,
            AttemptErrorRow.error,
            StageRunRow.failures,
            StageRunRow.retries,
            StageRunRow.stage,
        )
        .join(StageRunRow, StageRunRow.id == AttemptErrorRow.stage_run_id)
        .where(AttemptErrorRow.worker == worker_id, StageRunRow.state != StageRunState.FAILED.value)
        .order_by(AttemptErrorRow.stage_run_id)
    ).all()
    for row in errors:
        failures = dict(row.failures or {})
        limits = DEFAULT_RETRIES if row.retries is None else RetryLimits(**row.retries)
        times = failures.get("fenced", 0)
        if row.error["code"] != WorkerLost.code or times >= limits.fenced:
            continue
        error = Fenced(f"worker {worker_id} was cut off while it ran this, and lived", stage=row.error.get("stage"))
        is_row = (AttemptErrorRow.stage_run_id == row.stage_run_id, AttemptErrorRow.attempt == row.attempt)
        kind = fingerprint(error.code, row.stage, error.message)
        tx.execute(update(AttemptErrorRow).where(*is_row).values(error=error.to_dict(), fingerprint=kind))
        if failures.get("worker_lost", 0) > 0:  # a retry by its user begins to count anew
            failures |= {"worker_lost": failures["worker_lost"] - 1, "fenced": times + 1}
            apart = "" if is_last_chance(failures, limits) else None
            counts = {"failures": failures, "apart": apart}
            tx.execute(update(StageRunRow).where(StageRunRow.id == row.stage_run_id).values(**counts))


def remove_lost(tx: Connection, since: float) -> None:
    """Remove the rows of workers whose lease ran out, if they had the time of a whole lease to renew it.

    ``since`` is when the database began to answer without a gap, in seconds since 1970.
    """
    had_time = WorkerRow.lease_until - WorkerRow.renewed_at <= now() - since
    gone = (
        select(WorkerRow.id)
        .where(WorkerRow.lease_until <= now(), had_time)
        .order_by(WorkerRow.id)
        .with_for_update(skip_locked=True)
    )
    if ids := tx.execute(gone).scalars().all():
        stage_samples.note_final(tx, WorkerRow.id.in_(ids))
        tx.execute(delete(WorkerRow).where(WorkerRow.id.in_(ids)))


def free_lost(tx: Connection) -> tuple[int, set[str]]:
    """Free up to FREED_AT_ONCE running stage runs whose worker has no row. Return their number, and the queues to ring.

    If the number is FREED_AT_ONCE, there may be others: call again.
    """
    is_gone = ~exists().where(WorkerRow.id == StageRunRow.owner)
    outcomes = _free(tx, is_gone, limit=FREED_AT_ONCE)
    return len(outcomes), _queues(outcomes)


def _free(tx: Connection, condition: ColumnElement[bool], limit: int | None = None) -> Sequence[Outcome]:
    """Fail the running stage runs that match with ``worker_lost``, and return the outcomes."""
    running = select(StageRunRow.id, StageRunRow.attempt, StageRunRow.owner).where(_IS_RUNNING, condition)
    failures = [
        Failure(row.id, row.attempt, row.owner, WorkerLost(f"worker {row.owner} was lost while it ran this"))
        for row in sorted(tx.execute(running.limit(limit)).all(), key=lambda row: row.id)
    ]
    return report(tx, failures)


def _queues(outcomes: Sequence[Outcome]) -> set[str]:
    return {queue for outcome in outcomes for queue in outcome.queues}


def workers(tx: Connection) -> list[WorkerView]:
    """Return the workers with a live lease and a loaded engine, sorted by pipeline, stage and slot."""
    running = running_by_worker(tx)
    rows = tx.execute(
        select(WorkerRow.__table__).where(_SERVES).order_by(WorkerRow.pipeline, WorkerRow.stage, WorkerRow.slot)
    )
    return [_view(row._mapping, running.get(row.id, 0)) for row in rows]


def _view(row: Mapping[Any, Any], running: int) -> WorkerView:
    stats = WorkerStats() if row["stats"] is None else WorkerStats.of(row["stats"])
    return WorkerView.model_validate(
        {
            **row,
            "running": running,
            "info": row["info"] or {},
            "ended": stats.of_stage.ended,
            "memory_bytes": stats.memory_bytes,
            "claimed_at": stats.claimed_at,
        }
    )


def running_by_worker(tx: Connection) -> dict[str, int]:
    """Return the number of stage runs that each worker runs, by worker id; workers that run none are left out."""
    rows = tx.execute(
        select(StageRunRow.owner, func.count().label("running")).where(_IS_RUNNING).group_by(StageRunRow.owner)
    )
    return {row.owner: row.running for row in rows}
