"""The live workers, as readers see them."""

from __future__ import annotations

from sqlalchemy import Connection, func, select, true

from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.tables import StageRunRow, WorkerRow, state_is
from omni_jobs.states import StageRunState
from omni_jobs.views import WorkerView

__all__ = ["running_by_worker", "workers"]


def workers(tx: Connection) -> list[WorkerView]:
    """Return the workers that have a live lease and have loaded their engine, by pipeline, stage and slot."""
    running = running_by_worker(tx)
    rows = tx.execute(
        select(WorkerRow.__table__)
        .where(WorkerRow.lease_until > now(), WorkerRow.loading.is_not(true()))
        .order_by(WorkerRow.pipeline, WorkerRow.stage, WorkerRow.slot)
    )
    return [
        WorkerView(
            id=row.id,
            slot=row.slot,
            pipeline=row.pipeline,
            stage=row.stage,
            host=row.host,
            pid=row.pid,
            slots=row.slots,
            pipeline_version=row.pipeline_version,
            pipeline_digest=row.pipeline_digest,
            running=running.get(row.id, 0),
            started_at=as_datetime(row.started_at),
            renewed_at=as_datetime(row.renewed_at),
            lease_until=as_datetime(row.lease_until),
        )
        for row in rows
    ]


def running_by_worker(tx: Connection) -> dict[str, int]:
    """Return how many stage runs each worker runs, by worker id; workers that run none are left out."""
    rows = tx.execute(
        select(StageRunRow.owner, func.count().label("running"))
        .where(state_is(StageRunRow.state, StageRunState.RUNNING))
        .group_by(StageRunRow.owner)
    )
    return {row.owner: row.running for row in rows}
