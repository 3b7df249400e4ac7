"""Announcing: hints for queued stage runs whose own hint seems to be lost.

A row that waits may wait for its turn behind a backlog, and its hint with it. So rows
are announced again only where a live worker of their stage has a free slot, which means
that the broker had nothing for it; then the longest unannounced first, a bounded number
in one round, and none of them twice within the announcing interval. A backlog of which
part of the hints is lost drains first by the hints that are left, then by these.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from omni_jobs.db import now
from omni_jobs.jobs.values import Hint
from omni_jobs.models import StageRunRow, WorkerRow, state_is
from omni_jobs.states import StageRunState

__all__ = ["announce"]


def announce(tx: Connection, *, at_most: int, announce_after_s: float) -> list[Hint]:
    """Hints for up to ``at_most`` stage runs of each stage that has free slots."""
    at: float = tx.execute(select(now())).scalar_one()
    hints: list[Hint] = []
    for pipeline, stage in _stages_with_free_slots(tx, at):
        waiting = (
            select(StageRunRow.id)
            .where(
                StageRunRow.pipeline == pipeline,
                StageRunRow.stage == stage,
                state_is(StageRunRow.state, StageRunState.QUEUED),
                StageRunRow.announce_at <= at,
            )
            .order_by(StageRunRow.announce_at)
            .limit(at_most)
            .with_for_update(skip_locked=True)
        )
        announced = tx.execute(
            update(StageRunRow)
            .where(StageRunRow.id.in_(waiting))
            .values(announce_at=at + announce_after_s)
            .returning(StageRunRow.id, StageRunRow.attempt, StageRunRow.queue)
        )
        hints += sorted((Hint(row.id, row.attempt, row.queue) for row in announced), key=lambda h: h.stage_run_id)
    return hints


def _stages_with_free_slots(tx: Connection, at: float) -> list[tuple[str, str]]:
    busy = {
        (row.pipeline, row.stage): row.running
        for row in tx.execute(
            select(StageRunRow.pipeline, StageRunRow.stage, func.count().label("running"))
            .where(state_is(StageRunRow.state, StageRunState.RUNNING))
            .group_by(StageRunRow.pipeline, StageRunRow.stage)
        )
    }
    slots = tx.execute(
        select(WorkerRow.pipeline, WorkerRow.stage, func.sum(WorkerRow.slots).label("slots"))
        .where(WorkerRow.lease_until > at)
        .group_by(WorkerRow.pipeline, WorkerRow.stage)
        .order_by(WorkerRow.pipeline, WorkerRow.stage)
    ).all()
    return [(row.pipeline, row.stage) for row in slots if busy.get((row.pipeline, row.stage), 0) < row.slots]
