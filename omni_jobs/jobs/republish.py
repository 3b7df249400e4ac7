"""Republish: publish the hints of queued stage runs again that seem to be lost.

A queued stage run has either lost its hint, or waits for its turn because other hints are before its own in the
broker. Only where a live worker of the stage, with the job's pipeline file, has a free slot are hints published again,
because the broker had no hint for that slot. The stage runs whose hints are oldest come first, a bounded number in
each round, and each at most once in ``announce_after_s``.

A round reads a bounded number of stage runs of a stage, because those of a pipeline file whose workers are busy or
gone may be a million. The next round goes on after them.
"""

from collections import defaultdict

from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select, true, update

from omni_jobs.database.clock import now
from omni_jobs.database.tables import JobRow, StageRunRow, WorkerRow, state_is, state_seen
from omni_jobs.jobs.lease import running_by_worker
from omni_jobs.jobs.values import Hint
from omni_jobs.states import StageRunState

Positions = dict[tuple[str, str, frozenset[str]], tuple[float, int]]
"""The stage run behind which the next round goes on, as its (announce_at, id), by (pipeline, stage, digests of the
pipeline files with free slots)."""


def republish(
    tx: Connection, announce_after_s: float, positions: Positions, at_most: int, read_at_most: int = 10_000
) -> list[Hint]:
    """Return the hints to publish again, at most ``at_most`` for each stage with free slots.

    Their rows are changed as if they were published. Of each stage at most ``read_at_most`` queued stage runs are read.
    ``positions`` says where the last call stopped, and is changed to where this one stopped; start with an empty dict.
    """
    at: float = tx.execute(select(now())).scalar_one()
    hints: list[Hint] = []
    next_positions: Positions = {}
    for (pipeline, stage), digests in _files_with_free_slots(tx, at).items():
        key = (pipeline, stage, frozenset(digests))
        due = and_(
            StageRunRow.pipeline == pipeline,
            StageRunRow.stage == stage,
            state_is(StageRunRow.state, StageRunState.QUEUED),
            StageRunRow.announce_at <= at,
        )
        position = positions.get(key)
        ids = _claimable_ids(tx, due, digests, position, read_at_most, at_most)
        new_hints = _take_hints(tx, ids, at, at + announce_after_s)
        hints += new_hints
        if len(new_hints) < at_most:  # none of the stage runs that were read is left for these workers
            skipped = read_at_most - len(new_hints)
            last = tx.execute(_next(due, position, skipped).limit(1).offset(skipped - 1)).one_or_none()
            position = None if last is None else (last.announce_at, last.id)
        if position is not None:
            next_positions[key] = position
    positions.clear()
    positions.update(next_positions)
    return hints


def _claimable_ids(
    tx: Connection,
    due: ColumnElement[bool],
    digests: set[str],
    position: tuple[float, int] | None,
    read_at_most: int,
    at_most: int,
) -> list[int]:
    """Return the ids of the first ``at_most`` due stage runs behind ``position`` whose job has one of these files."""
    read = _next(due, position, read_at_most).subquery()
    digest = select(JobRow.pipeline_digest).where(JobRow.id == read.c.job_id)
    claimable = (
        select(read.c.id)
        # A subquery for each row in turn, until there are enough: a join might read every job first.
        .where(digest.correlate(read).scalar_subquery().in_(["", *digests]))
        # Not sorted again, because SQLite would read all rows for it. They come in the subquery's order.
        .limit(at_most)
    )
    return list(tx.execute(claimable).scalars())


def _take_hints(tx: Connection, ids: list[int], at: float, announce_at: float) -> list[Hint]:
    """Set ``announce_at`` of those of these stage runs that are still due and not locked, and return their hints."""
    # The ids come from a query of their own: within this one PostgreSQL might find all of them again for each.
    due = and_(state_seen(StageRunRow.state, StageRunState.QUEUED), StageRunRow.announce_at <= at)
    unlocked = select(StageRunRow.id).where(StageRunRow.id.in_(ids), due).with_for_update(skip_locked=True)
    rows = tx.execute(
        update(StageRunRow)
        .where(StageRunRow.id.in_(unlocked))
        .values(announce_at=announce_at)
        .returning(StageRunRow.id, StageRunRow.attempt, StageRunRow.queue)
    )
    return sorted((Hint(row.id, row.attempt, row.queue) for row in rows), key=lambda hint: hint.stage_run_id)


def _next(due: ColumnElement[bool], position: tuple[float, int] | None, count: int) -> Select[int, str, float | None]:
    """Select the first ``count`` of the due stage runs, those behind a position."""
    rows = select(StageRunRow.id, StageRunRow.job_id, StageRunRow.announce_at).where(due)
    if position is not None:
        at, id_ = position
        behind = or_(StageRunRow.announce_at > at, StageRunRow.id > id_)
        rows = rows.where(StageRunRow.announce_at >= at, behind)
    return rows.order_by(StageRunRow.announce_at, StageRunRow.id).limit(count)


def _files_with_free_slots(tx: Connection, at: float) -> dict[tuple[str, str], set[str]]:
    """Return the digests of the pipeline files whose live workers have free slots in all, by (pipeline, stage)."""
    running = running_by_worker(tx)
    free: dict[tuple[str, str, str], int] = defaultdict(int)
    workers = select(
        WorkerRow.id, WorkerRow.pipeline, WorkerRow.stage, WorkerRow.pipeline_digest, WorkerRow.slots
    ).where(WorkerRow.lease_until > at, WorkerRow.loading.is_not(true()))
    for row in tx.execute(workers):
        free[row.pipeline, row.stage, row.pipeline_digest] += row.slots - running.get(row.id, 0)
    digests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pipeline, stage, digest in sorted(key for key, slots in free.items() if slots > 0):
        digests[pipeline, stage].add(digest)
    return digests
