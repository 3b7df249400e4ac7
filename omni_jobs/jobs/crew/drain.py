"""Drain and resume single workers. A drained worker claims nothing, and learns it with the renewal of its lease.

As with a stage's pause, what it runs goes on, and it may claim for another heartbeat. A worker that starts is not
drained, even in the slot of one that was.
"""

from sqlalchemy import Connection, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import NotFound
from omni_jobs.identity import PipelineId, StageId


def drain(tx: Connection, worker_id: str, act: Act | None = None) -> None:
    """Let a worker claim nothing more, until ``undrain`` or its end. One that is drained keeps the time of the first.

    Raises NotFound for a worker that is gone.
    """
    _change(tx, worker_id, act, is_drained=True)


def undrain(tx: Connection, worker_id: str, act: Act | None = None) -> StageId:
    """Let a worker claim again, and return its stage, whose queue the caller rings. Raises NotFound."""
    return _change(tx, worker_id, act, is_drained=False)


def _change(tx: Connection, worker_id: str, act: Act | None, *, is_drained: bool) -> StageId:
    row = WorkerRow
    columns = (row.slot, row.pipeline, row.pipeline_digest, row.stage, row.drained_at)
    worker = tx.execute(select(*columns).where(row.id == worker_id).with_for_update()).one_or_none()
    if worker is None:
        raise NotFound(f"there is no worker {worker_id!r:.80} any more", field="worker_id")
    if (worker.drained_at is not None) != is_drained:
        tx.execute(update(row).where(row.id == worker_id).values(drained_at=now() if is_drained else None))
        if act is not None:
            act.note(tx, worker.slot, None)
    return StageId(PipelineId(worker.pipeline, worker.pipeline_digest), worker.stage)
