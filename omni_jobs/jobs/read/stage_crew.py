"""``stage_crew``: the workers of a stage that serve, load or are drained, what they hold, and what waits for them."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.statement import AnyRow
from omni_jobs.database.tables import StageRunRow, WorkerRow, state_is
from omni_jobs.identity import StageId
from omni_jobs.jobs.keep.stage_samples import LONG_S
from omni_jobs.jobs.read.stage_samples import stage_samples
from omni_jobs.metrics.stage_stats import StageStats
from omni_jobs.states import StageRunState

_COUNTED = 10_000  # of a stage's queued stage runs, so that the read takes milliseconds however many wait
_SAMPLED_S: Final = 86_400.0
_OF_A_RUN: Final = ("load", "run", "store")  # the steps from a claim to its end

_running = (
    select(func.count())
    .where(state_is(StageRunRow.state, StageRunState.RUNNING), StageRunRow.owner == WorkerRow.id)
    .correlate(WorkerRow)
)
_WORKERS = select(
    WorkerRow.slots,
    WorkerRow.slots_for_high,
    WorkerRow.run_s,
    WorkerRow.loading,
    WorkerRow.drained_at,
    _running.scalar_subquery().label("n"),
).where(
    WorkerRow.pipeline == bindparam("pipeline"),
    WorkerRow.stage == bindparam("stage"),
    WorkerRow.pipeline_digest == bindparam("pipeline_digest"),
    WorkerRow.lease_until > now(),
)
_queued = (
    select(StageRunRow.id)
    .where(
        state_is(StageRunRow.state, StageRunState.QUEUED),
        StageRunRow.pipeline == bindparam("pipeline"),
        StageRunRow.stage == bindparam("stage"),
        StageRunRow.pipeline_digest == bindparam("pipeline_digest"),
    )
    .limit(bindparam("most"))
)
_WAITING = select(func.count()).select_from(_queued.subquery())


class StageCrew(NamedTuple):
    """The live workers of a stage that have its pipeline's file, and what waits for them.

    One that is drained takes nothing any more, so it counts apart, whether its engine is loaded or not.
    """

    waiting: int | None  # queued stage runs; None: too many to be counted here
    serving: int  # workers whose engine is loaded
    loading: int  # workers that load theirs
    drained: int  # workers
    busy: int  # workers that serve and run something, and those that load
    running: int  # the stage runs that workers hold which serve
    held_by_drained: int  # the stage runs that drained ones still hold
    slots: float | None  # of one worker in the mean, but for kept ones; None: there is no worker
    run_s: float | None  # how long a stage run took lately, in the mean; None: none has ended for a day


def stage_crew(tx: Connection, stage: StageId) -> StageCrew:
    """Return the live workers of a stage of one version, and how many of its stage runs are queued."""
    names = stage.columns
    waiting = tx.execute(_WAITING, {**names, "most": _COUNTED + 1}).scalar_one()
    found = tx.execute(_WORKERS, names).all()
    workers = [worker for worker in found if worker.drained_at is None]
    for_any = [max(1, worker.slots - worker.slots_for_high) for worker in workers]
    return StageCrew(
        waiting=waiting if waiting <= _COUNTED else None,
        serving=sum(not worker.loading for worker in workers),
        loading=sum(worker.loading for worker in workers),
        drained=len(found) - len(workers),
        busy=sum(bool(worker.loading or worker.n) for worker in workers),
        running=sum(worker.n for worker in workers),
        held_by_drained=sum(worker.n for worker in found if worker.drained_at is not None),
        slots=sum(for_any) / len(for_any) if for_any else None,
        run_s=_run_s(workers) or _run_s(found) or _sampled_run_s(tx, stage),
    )


def _run_s(workers: Sequence[AnyRow]) -> float | None:
    """Return how long a stage run took these workers lately, in the mean; None: none of them knows yet."""
    known = [(worker.slots, worker.run_s) for worker in workers if worker.run_s]
    ends_per_s = sum(slots / run_s for slots, run_s in known)
    return sum(slots for slots, _ in known) / ends_per_s if known else None


def _sampled_run_s(tx: Connection, stage: StageId) -> float | None:
    """Return how long a stage run took within a day, by the samples, in the mean; None: none has ended.

    They count all versions: of one that has no worker yet, how long others took is the best guess.
    """
    since = tx.execute(select(now() - _SAMPLED_S)).scalar_one()
    found = StageStats()
    for sample in stage_samples(
        tx, LONG_S, since, since + 2 * _SAMPLED_S, pipeline=stage.pipeline.name, stage=stage.stage
    ):
        found = found.plus(sample.stats)
    steps = [found.seconds[step] for step in _OF_A_RUN if step in found.seconds]
    return sum(step.sum_s / step.count for step in steps if step.count) or None
