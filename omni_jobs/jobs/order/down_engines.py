"""The slots whose engine is down, so that a stage that stands still can say that it has not just begun to load.

A worker whose engine died, hangs or cannot be loaded ends, and another one starts in its slot. Until that one serves,
and for ``KEPT_S`` at most, the slot's engine is down.
"""

from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.seen_tables import DownEngineRow
from omni_jobs.database.tables import WorkerRow

KEPT_S: Final = 3600.0
"""How long a slot counts in which no worker has served again: whoever gave it up tells nobody."""


class DownStage(NamedTuple):
    """The stage of engines that are down, of one version of its pipeline."""

    pipeline: str
    digest: str | None  # Pipeline.digest; None: not known, because an older build noted it
    stage: str


def note_down(tx: Connection, worker_id: str) -> None:
    """Note that the engine of a worker is down, whose row is still there. Forget those of long ago."""
    columns = (WorkerRow.slot, WorkerRow.pipeline, WorkerRow.pipeline_digest, WorkerRow.stage)
    found = tx.execute(select(*columns).where(WorkerRow.id == worker_id)).one_or_none()
    tx.execute(delete(DownEngineRow).where(DownEngineRow.at < now() - KEPT_S))
    if found is not None:
        values = {**found._mapping, "at": now()}
        new = insert_or(tx, DownEngineRow).values(**values)
        tx.execute(new.on_conflict_do_update(index_elements=[DownEngineRow.slot], set_=values))


def note_serving(tx: Connection, slot: str) -> None:
    """Note that a worker serves in this slot."""
    tx.execute(delete(DownEngineRow).where(DownEngineRow.slot == slot))


def down_engines(tx: Connection) -> dict[DownStage, int]:
    """Return how many slots have an engine that is down, by version and stage; stages without any are left out."""
    columns = (DownEngineRow.pipeline, DownEngineRow.pipeline_digest, DownEngineRow.stage)
    is_kept = DownEngineRow.at >= now() - KEPT_S
    counted = select(*columns, func.count().label("slots")).where(is_kept).group_by(*columns)
    return {DownStage(row.pipeline, row.pipeline_digest, row.stage): row.slots for row in tx.execute(counted)}
