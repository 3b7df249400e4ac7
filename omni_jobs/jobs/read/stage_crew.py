"""``stage_crew``: the workers of a stage that serve or load, what they hold, and what waits for them."""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.tables import StageRunRow, WorkerRow, state_is
from omni_jobs.states import StageRunState

_COUNTED = 10_000  # of a stage's queued stage runs, so that the read takes milliseconds however many wait

_running = (
    select(func.count())
    .where(state_is(StageRunRow.state, StageRunState.RUNNING), StageRunRow.owner == WorkerRow.id)
    .correlate(WorkerRow)
)
_WORKERS = select(
    WorkerRow.slots, WorkerRow.slots_for_high, WorkerRow.run_s, WorkerRow.loading, _running.scalar_subquery().label("n")
).where(
    WorkerRow.pipeline == bindparam("pipeline"),
    WorkerRow.stage == bindparam("stage"),
    WorkerRow.lease_until > now(),
)
_queued = (
    select(StageRunRow.id)
    .where(
        state_is(StageRunRow.state, StageRunState.QUEUED),
        StageRunRow.pipeline == bindparam("pipeline"),
        StageRunRow.stage == bindparam("stage"),
    )
    .limit(bindparam("most"))
)
_WAITING = select(func.count()).select_from(_queued.subquery())


class StageCrew(NamedTuple):
    """The live workers of a stage, of all versions of its pipeline, and what waits for them."""

    waiting: int | None  # queued stage runs; None: too many to be counted here
    serving: int  # workers whose engine is loaded
    loading: int  # workers that load theirs
    busy: int  # workers that run something, and those that load
    running: int  # the stage runs that they hold
    slots: float | None  # of one worker in the mean, but for kept ones; None: there is no worker
    run_s: float | None  # how long a stage run took them lately, in the mean; None: none of them knows yet


def stage_crew(tx: Connection, pipeline: str, stage: str) -> StageCrew:
    """Return the live workers of a stage, and how many of its stage runs are queued."""
    names = {"pipeline": pipeline, "stage": stage}
    waiting = tx.execute(_WAITING, {**names, "most": _COUNTED + 1}).scalar_one()
    workers = tx.execute(_WORKERS, names).all()
    known = [(worker.slots, worker.run_s) for worker in workers if worker.run_s]
    for_any = [max(1, worker.slots - worker.slots_for_high) for worker in workers]
    ends_per_s = sum(slots / run_s for slots, run_s in known)
    return StageCrew(
        waiting=waiting if waiting <= _COUNTED else None,
        serving=sum(not worker.loading for worker in workers),
        loading=sum(worker.loading for worker in workers),
        busy=sum(bool(worker.loading or worker.n) for worker in workers),
        running=sum(worker.n for worker in workers),
        slots=sum(for_any) / len(for_any) if for_any else None,
        run_s=sum(slots for slots, _ in known) / ends_per_s if known else None,
    )
