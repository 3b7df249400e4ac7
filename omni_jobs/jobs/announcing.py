"""Announcing: hints for queued stage runs whose own hint seems to be lost.

A row that waits may wait for its turn behind a backlog, and its hint with it. So rows
are announced again only where a live worker of their stage that has their job's pipeline
file has a free slot, which means that the broker had nothing for it; then the longest
unannounced first, a bounded number in one round, and none of them twice within the
announcing interval. A backlog of which part of the hints is lost drains first by the
hints that are left, then by these.
"""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection, func, select, true, update

from omni_jobs.db import now
from omni_jobs.jobs.values import Hint
from omni_jobs.models import JobRow, StageRunRow, WorkerRow, state_is
from omni_jobs.states import StageRunState

__all__ = ["announce"]


def announce(tx: Connection, *, at_most: int, announce_after_s: float) -> list[Hint]:
    """Hints for up to ``at_most`` stage runs of each stage that has free slots."""
    at: float = tx.execute(select(now())).scalar_one()
    hints: list[Hint] = []
    for (pipeline, stage), digests in _files_with_free_slots(tx, at).items():
        digest = select(JobRow.pipeline_digest).where(JobRow.id == StageRunRow.job_id)
        waiting = (
            select(StageRunRow.id)
            .where(
                StageRunRow.pipeline == pipeline,
                StageRunRow.stage == stage,
                state_is(StageRunRow.state, StageRunState.QUEUED),
                StageRunRow.announce_at <= at,
                # Of each row in turn, until there are enough: a join might look at every job first.
                digest.correlate(StageRunRow).scalar_subquery().in_(["", *digests]),
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


def _files_with_free_slots(tx: Connection, at: float) -> dict[tuple[str, str], set[str]]:
    """By pipeline and stage: the digests of the pipeline files whose live workers have free slots between them."""
    running = {
        row.owner: row.running
        for row in tx.execute(
            select(StageRunRow.owner, func.count().label("running"))
            .where(state_is(StageRunRow.state, StageRunState.RUNNING))
            .group_by(StageRunRow.owner)
        )
    }
    free: dict[tuple[str, str, str], int] = defaultdict(int)
    workers = select(
        WorkerRow.id, WorkerRow.pipeline, WorkerRow.stage, WorkerRow.pipeline_digest, WorkerRow.slots
    ).where(WorkerRow.lease_until > at, WorkerRow.loading.is_not(true()))
    for row in tx.execute(workers):
        free[row.pipeline, row.stage, row.pipeline_digest] += row.slots - running.get(row.id, 0)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pipeline, stage, digest in sorted(key for key, slots in free.items() if slots > 0):
        found[pipeline, stage].add(digest)
    return found
