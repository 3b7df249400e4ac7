"""Calibrate: keep estimates of waits with what became of them, and make a stage's later intervals of that.

The rescuer does this for each stage, a round after the other. It asks for the estimates of a few stage runs that
wait, as a user would, and keeps the answers; so the calibration stands for whoever may ask, and no read writes.
``omni_jobs.jobs.read.estimates`` is the policy.

All versions of a pipeline share a stage's calibration, so that a new one begins with what was learned of the others. An
estimate whose wait goes on counts only while its own version has workers and is not paused.
"""

import random
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, func, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.tables import CalibrationRow, EstimateRow, StageRunRow, WorkerRow
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs.order.paused_stages import is_paused
from omni_jobs.jobs.read import estimates
from omni_jobs.jobs.read.estimates import FIRST_FACTORS, RECENT, Interval, Tails
from omni_jobs.jobs.read.line import expected_wait, factors_of, length, pace, place, standing_at
from omni_jobs.states import StageRunState
from omni_jobs.views import CalibrationView

KEPT = 1000
"""The number of a stage's newest estimates that are kept."""

_OPEN_AT_MOST = 200  # estimates of a stage whose wait has not ended; near it, fewer are made

_SAMPLED_AT_MOST = 4  # of a long line, in a round

_OPEN = EstimateRow.waited_s.is_(None)
_its_digest = (
    select(StageRunRow.pipeline_digest)
    .where(StageRunRow.id == EstimateRow.stage_run_id)
    .correlate(EstimateRow)
    .scalar_subquery()
)
_SERVES = (WorkerRow.lease_until > now(), WorkerRow.loading.is_(False), WorkerRow.drained_at.is_(None))


def lines(tx: Connection) -> list[StageId]:
    """Return the lines with work for ``calibrate``: in which stage runs wait for live workers, or waits may have ended.

    An idle system has none, so that it writes nothing.
    """
    served = select(WorkerRow.pipeline, WorkerRow.stage, WorkerRow.pipeline_digest).where(*_SERVES)
    serving = [StageId(PipelineId(name, digest), stage) for name, stage, digest in tx.execute(served.distinct())]
    found = {line for line in serving if length(tx, line)}
    stages = {(line.pipeline.name, line.stage) for line in found}
    waiting = tx.execute(select(EstimateRow.pipeline, EstimateRow.stage).where(_OPEN).distinct())
    # "": no file, because nothing waits there now
    return sorted(
        [*found, *(StageId(PipelineId(name, ""), stage) for name, stage in waiting if (name, stage) not in stages)]
    )


def calibrate(tx: Connection, line: StageId) -> None:
    """Note which waits of a line's stage have ended, adapt its factors, and make estimates for a few that wait.

    Do nothing while another process does it.
    """
    stage: dict[str, Any] = {"pipeline": line.pipeline.name, "stage": line.stage}
    first = {"low_factor": FIRST_FACTORS.low, "high_factor": FIRST_FACTORS.high}
    tails = {"low_tail": Tails().low, "high_tail": Tails().high}
    insert_unless_there(tx, CalibrationRow, **stage, **first, **tails)
    is_stage = (CalibrationRow.pipeline == line.pipeline.name, CalibrationRow.stage == line.stage)
    mine = tx.execute(
        select(CalibrationRow.low_tail, CalibrationRow.high_tail).where(*is_stage).with_for_update(skip_locked=True)
    ).one_or_none()
    if mine is None:
        return
    paused = is_paused(tx, line)
    if paused:  # its waits depend on who paused it alone
        _drop_open(tx, line)
    adapted = _settle(tx, line, Tails(*mine))
    factors = estimates.factors(_ratios(tx, line), adapted)
    tx.execute(
        update(CalibrationRow)
        .where(*is_stage)
        .values(low_factor=factors.low, high_factor=factors.high, low_tail=adapted.low, high_tail=adapted.high)
    )
    if not paused and (count := length(tx, line)):
        _sample(tx, line, count)
    _prune(tx, line)


def calibrations(tx: Connection) -> list[CalibrationView]:
    """Return how many of each stage's kept intervals have held, sorted by pipeline and stage."""
    held = EstimateRow.waited_s.between(EstimateRow.low_s, EstimateRow.high_s)
    rows = tx.execute(
        select(
            EstimateRow.pipeline,
            EstimateRow.stage,
            func.count(EstimateRow.waited_s).label("estimates"),
            func.sum(case((held, 1), else_=0)).label("held"),
        )
        .group_by(EstimateRow.pipeline, EstimateRow.stage)
        .order_by(EstimateRow.pipeline, EstimateRow.stage)
    )
    return [
        CalibrationView(
            pipeline=row.pipeline,
            stage=row.stage,
            estimates=row.estimates,
            held=row.held,
            share=row.held / row.estimates if row.estimates else None,
        )
        for row in rows
    ]


def _drop_open(tx: Connection, line: StageId) -> None:
    """Delete the estimates whose wait goes on: of a paused version alone, or of all where the whole stage is paused."""
    is_dropped = [*_is_of(line), _OPEN]
    if not is_paused(tx, StageId(PipelineId(line.pipeline.name, ""), line.stage)):
        is_dropped.append(_its_digest == line.pipeline.digest)
    tx.execute(delete(EstimateRow).where(*is_dropped))


def _settle(tx: Connection, line: StageId, tails: Tails) -> Tails:
    """Note the waits that have ended, drop those that never will by a claim, and return the tails after them."""
    columns = (EstimateRow.id, EstimateRow.at, EstimateRow.low_s, EstimateRow.high_s)
    waiting = select(*columns, StageRunRow.state, StageRunRow.started_at)
    waiting = waiting.join_from(EstimateRow, StageRunRow, StageRunRow.id == EstimateRow.stage_run_id, isouter=True)
    never = []
    for row in tx.execute(_of(waiting, line).where(_OPEN).order_by(EstimateRow.id)).all():
        if row.started_at is not None and row.started_at >= row.at:
            waited_s = row.started_at - row.at
            tx.execute(update(EstimateRow).where(EstimateRow.id == row.id).values(waited_s=waited_s))
            tails = tails.after(estimates.beyond(waited_s, Interval(row.low_s, row.high_s)))
        elif row.state != StageRunState.QUEUED.value:
            never.append(row.id)
    if never:
        tx.execute(delete(EstimateRow).where(EstimateRow.id.in_(never)))
    return tails


def _ratios(tx: Connection, line: StageId) -> list[float]:
    """Return the ratios of the stage's newest estimates; a wait that is longer than was told counts as far as it is."""
    elapsed = now() - EstimateRow.at
    newest = _of(select(EstimateRow.point_s, func.coalesce(EstimateRow.waited_s, elapsed).label("waited_s")), line)
    newest = newest.where(EstimateRow.waited_s.is_not(None) | ((elapsed > EstimateRow.high_s) & _is_served(line)))
    rows = tx.execute(newest.order_by(EstimateRow.id.desc()).limit(RECENT))
    return [estimates.ratio(row.waited_s, row.point_s) for row in rows]


def _sample(tx: Connection, line: StageId, count: int) -> None:
    """Keep the estimates of the line's last stage run and of one to five random ones, more of a long line.

    The more estimates of the stage are kept whose wait goes on before workers, the less often any are added.
    """
    waiting = tx.execute(_of(select(func.count()), line).where(_OPEN, _is_served(line))).scalar_one()
    if random.random() < waiting / _OPEN_AT_MOST:  # noqa: S311
        return
    pace_now, factors = pace(tx, line), factors_of(tx, line)
    numbers = random.choices(range(count), k=1 + min(count // 8, _SAMPLED_AT_MOST))  # noqa: S311
    for standing in standing_at(tx, line, numbers):
        wait = expected_wait(place(tx, line, standing), pace_now, factors, standing.is_high)
        if wait is not None and wait.point_s:
            insert_unless_there(
                tx,
                EstimateRow,
                stage_run_id=standing.stage_run_id,
                pipeline=line.pipeline.name,
                stage=line.stage,
                at=now(),
                point_s=wait.point_s,
                low_s=wait.told.low_s,
                high_s=wait.told.high_s,
            )


def _prune(tx: Connection, line: StageId) -> None:
    """Delete the stage's estimates but the newest KEPT."""
    last = _of(select(EstimateRow.id), line).order_by(EstimateRow.id.desc()).offset(KEPT).limit(1)
    tx.execute(delete(EstimateRow).where(*_is_of(line), EstimateRow.id <= last.scalar_subquery()))


def _is_served(line: StageId) -> ColumnElement[bool]:
    """Return the condition that a live worker of the line's stage has the version of an estimate's stage run."""
    digests = select(WorkerRow.pipeline_digest).where(
        WorkerRow.pipeline == line.pipeline.name, WorkerRow.stage == line.stage, *_SERVES
    )
    return _its_digest.in_(digests)


def _is_of(line: StageId) -> tuple[Any, Any]:
    return EstimateRow.pipeline == line.pipeline.name, EstimateRow.stage == line.stage


def _of(query: Any, line: StageId) -> Any:
    """Return the query, of estimates of the line's stage alone."""
    return query.where(*_is_of(line))
