"""The payloads that the stage runs of a job have left."""

from typing import Any

from sqlalchemy import Connection, bindparam, select

from omni_jobs.database.tables import StageRunRow
from omni_jobs.jobs.read.job_view import owned
from omni_jobs.jobs.values import KeptPayload
from omni_jobs.storage import ObjectRef

_PAYLOADS = (
    select(
        StageRunRow.stage,
        StageRunRow.payload_bytes,
        StageRunRow.payload_ref,
        StageRunRow.payload_inline,
        StageRunRow.payload_gone,
        StageRunRow.taken_from,
    )
    .where(StageRunRow.job_id == bindparam("job_id"), StageRunRow.payload_bytes.is_not(None))
    .order_by(StageRunRow.position)
)


def payloads(tx: Connection, job_id: str, tenant: str | None = None) -> list[KeptPayload]:
    """Return the payloads of a job, those that are gone as well, in the order of its stages.

    Raises NotFound, also for a job of another tenant than ``tenant`` (None: any).
    """
    rows = tx.execute(_PAYLOADS, {"job_id": owned(tx, job_id, tenant)}).all()
    return [KeptPayload(stage, size, _ref(ref), inline, gone, maker) for stage, size, ref, inline, gone, maker in rows]


def _ref(ref: Any) -> ObjectRef | None:
    return None if ref is None else ObjectRef.model_validate(ref)
