"""Drain and resume single workers. A drained worker claims nothing, and learns it with the renewal of its lease.

As with a stage's pause, what it runs goes on, and it may claim for another heartbeat. A worker that starts is not
drained, even in the slot of one that was.
"""

from typing import NamedTuple

from sqlalchemy import Connection, or_, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import NotFound


class WorkerDrain(NamedTuple):
    """A worker, and whether it is drained."""

    id: str
    slot: str
    pipeline: str
    stage: str
    drained_at: float | None  # seconds since 1970; None: it is not drained


def set_drained(tx: Connection, worker: str, is_drained: bool, act: Act | None = None) -> WorkerDrain:
    """Let a worker claim nothing more until its end, or let it claim again; return how it stands then.

    ``worker`` is its id, or its slot. One that is drained already keeps the time of the first drain. Whoever lets one
    claim again rings its stage's queue. Raises NotFound for a worker that is gone.
    """
    row = WorkerRow
    columns = (row.id, row.slot, row.pipeline, row.stage, row.drained_at)
    is_it = or_(row.id == worker, row.slot == worker)
    # An id that is another worker's slot is nobody's intention, and still names one.
    found = tx.execute(
        select(*columns).where(is_it).order_by(row.id != worker).limit(1).with_for_update()
    ).one_or_none()
    if found is None:
        raise NotFound(f"there is no worker {worker!r:.80}", field="worker")
    known = WorkerDrain(*found)
    if (known.drained_at is not None) == is_drained:
        return known
    change = update(row).where(row.id == known.id).values(drained_at=now() if is_drained else None)
    drained_at = tx.execute(change.returning(row.drained_at)).scalar_one()
    if act is not None:
        act.note(tx, known.slot, None)
    return known._replace(drained_at=drained_at)
