"""Pause and resume stages. Workers of a paused stage claim nothing, and learn it with each renewal of their lease.

Stage runs in flight go on, deadlines too. A claim itself knows nothing of pauses, so workers may claim for another
heartbeat.
"""

from sqlalchemy import ColumnElement, Connection, delete, exists, select

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.tables import PausedStageRow
from omni_jobs.identity import StageId


def pause(tx: Connection, stage: StageId) -> None:
    """Pause a stage: its workers claim nothing more, each after its next renewal at the latest.

    A stage that is paused already keeps the time of its first pause. What its workers run goes on, and so do deadlines.
    Stages need no row, so the caller checks that there is such a stage.
    """
    insert_unless_there(tx, PausedStageRow, pipeline=stage.pipeline.name, stage=stage.stage, at=now())


def resume(tx: Connection, stage: StageId) -> None:
    """End a stage's pause, if there is one. The caller rings the stage's queue."""
    tx.execute(delete(PausedStageRow).where(*_is_of(stage)))


def paused_stages(tx: Connection) -> dict[tuple[str, str], float]:
    """Return when each paused stage was paused, in seconds since 1970, by (pipeline, stage)."""
    rows = tx.execute(select(PausedStageRow.pipeline, PausedStageRow.stage, PausedStageRow.at))
    return {(row.pipeline, row.stage): row.at for row in rows}


def is_paused(tx: Connection, stage: StageId) -> bool:
    """Return whether a stage is paused."""
    return bool(tx.execute(select(exists().where(*_is_of(stage)))).scalar_one())


def _is_of(stage: StageId) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions on the row of a stage's pause, which holds for all versions of its pipeline."""
    return PausedStageRow.pipeline == stage.pipeline.name, PausedStageRow.stage == stage.stage
