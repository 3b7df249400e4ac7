"""Announcing: hints for queued stage runs whose own hint seems to be lost.

A row that waits may wait for its turn behind a backlog, and its hint with it. So rows
are announced again only where a live worker of their stage that has their job's pipeline
file has a free slot, which means that the broker had nothing for it; then the longest
unannounced first, a bounded number in one round, and none of them twice within the
announcing interval. A backlog of which part of the hints is lost drains first by the
hints that are left, then by these.

A round looks at a bounded number of rows of a stage, because those of a pipeline file
whose workers are busy or gone may be a million. Where that leaves room, the next round
goes on behind them.
"""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select, true, update

from omni_jobs.database.clock import now
from omni_jobs.database.tables import JobRow, StageRunRow, WorkerRow, state_is
from omni_jobs.jobs.values import Hint
from omni_jobs.states import StageRunState

__all__ = ["Places", "announce"]

# Where the next round goes on: by pipeline, stage and digests with free slots, the last row that was looked at,
# as its time to be announced and its id.
Places = dict[tuple[str, str, frozenset[str]], tuple[float, int]]


def announce(
    tx: Connection, *, at_most: int, announce_after_s: float, places: Places, look_at: int = 10_000
) -> list[Hint]:
    """Hints for up to ``at_most`` stage runs of each stage that has free slots, of ``look_at`` that wait.

    ``places`` are the last round's, and become the next one's.
    """
    at: float = tx.execute(select(now())).scalar_one()
    hints: list[Hint] = []
    next_places: Places = {}
    for (pipeline, stage), digests in _files_with_free_slots(tx, at).items():
        which = (pipeline, stage, frozenset(digests))
        due = and_(
            StageRunRow.pipeline == pipeline,
            StageRunRow.stage == stage,
            state_is(StageRunRow.state, StageRunState.QUEUED),
            StageRunRow.announce_at <= at,
        )
        place = places.get(which)
        looked_at = _next(due, place, look_at).subquery()
        digest = select(JobRow.pipeline_digest).where(JobRow.id == looked_at.c.job_id)
        waiting = (
            select(looked_at.c.id)
            # Of each row in turn, until there are enough: a join might look at every job first.
            .where(digest.correlate(looked_at).scalar_subquery().in_(["", *digests]))
            .order_by(looked_at.c.announce_at, looked_at.c.id)
            .limit(at_most)
        )
        # Asked for apart: within another statement PostgreSQL might look at them all for each of them.
        ids = tx.execute(waiting).scalars().all()
        unlocked = select(StageRunRow.id).where(StageRunRow.id.in_(ids), due).with_for_update(skip_locked=True)
        announced = tx.execute(
            update(StageRunRow)
            .where(StageRunRow.id.in_(unlocked))
            .values(announce_at=at + announce_after_s)
            .returning(StageRunRow.id, StageRunRow.attempt, StageRunRow.queue)
        )
        found = sorted((Hint(row.id, row.attempt, row.queue) for row in announced), key=lambda h: h.stage_run_id)
        hints += found
        if len(found) < at_most:  # nothing of what was looked at is left for these workers
            left = look_at - len(found)
            last = tx.execute(_next(due, place, left).limit(1).offset(left - 1)).one_or_none()
            place = None if last is None else (last.announce_at, last.id)
        if place is not None:
            next_places[which] = place
    places.clear()
    places.update(next_places)
    return hints


def _next(due: ColumnElement[bool], place: tuple[float, int] | None, count: int) -> Select[int, str, float | None]:
    """The first ``count`` of the stage runs that are ``due``, those behind a place."""
    rows = select(StageRunRow.id, StageRunRow.job_id, StageRunRow.announce_at).where(due)
    if place is not None:
        at, id_ = place
        behind = or_(StageRunRow.announce_at > at, StageRunRow.id > id_)
        rows = rows.where(StageRunRow.announce_at >= at, behind)
    return rows.order_by(StageRunRow.announce_at, StageRunRow.id).limit(count)


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
