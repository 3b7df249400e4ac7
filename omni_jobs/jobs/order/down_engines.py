"""The slots whose engine is down, so that a stage that stands still can say that it has not just begun to load.

A worker whose engine died, hangs or cannot be loaded ends, and another one starts in its slot. Until that one serves,
and for ``KEPT_S`` at most, the slot's engine is down.
"""

from typing import Final

from sqlalchemy import Connection, delete, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.seen_tables import DownEngineRow
from omni_jobs.database.tables import WorkerRow

KEPT_S: Final = 3600.0
"""How long a slot counts in which no worker has served again: whoever gave it up tells nobody."""


def note_down(tx: Connection, worker_id: str) -> None:
    """Note that the engine of a worker is down, whose row is still there. Forget those of long ago."""
    worker = select(WorkerRow.slot, WorkerRow.pipeline, WorkerRow.stage).where(WorkerRow.id == worker_id)
    found = tx.execute(worker).one_or_none()
    tx.execute(delete(DownEngineRow).where(DownEngineRow.at < now() - KEPT_S))
    if found is not None:
        values = {**found._mapping, "at": now()}
        new = insert_or(tx, DownEngineRow).values(**values)
        tx.execute(new.on_conflict_do_update(index_elements=[DownEngineRow.slot], set_=values))


def note_serving(tx: Connection, slot: str) -> None:
    """Note that a worker serves in this slot."""
    tx.execute(delete(DownEngineRow).where(DownEngineRow.slot == slot))


def down_engines(tx: Connection) -> dict[tuple[str, str], int]:
    """Return how many slots have an engine that is down, by (pipeline, stage); stages without any are left out."""
    row = DownEngineRow
    counted = select(row.pipeline, row.stage, func.count().label("slots")).where(row.at >= now() - KEPT_S)
    return {(each.pipeline, each.stage): each.slots for each in tx.execute(counted.group_by(row.pipeline, row.stage))}
