"""Pause and resume stages. Workers of a paused stage claim nothing, and learn it with each renewal of their lease.

Stage runs in flight go on, deadlines too. A claim itself knows nothing of pauses, so workers may claim for another
heartbeat.
"""

from sqlalchemy import ColumnElement, Connection, delete, exists, select

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.tables import PausedStageRow
from omni_jobs.identity import StageId


def pause(tx: Connection, stage: StageId, act: Act | None = None) -> None:
    """Pause a stage: its workers claim nothing more, each after its next renewal at the latest.

    A stage that is paused already keeps the time of its first pause. What its workers run goes on, and so do deadlines.
    Stages need no row, so the caller checks that there is such a stage.
    """
    values = {"pipeline": stage.pipeline.name, "stage": stage.stage, "at": now()}
    new = insert_or(tx, PausedStageRow).values(**values).on_conflict_do_nothing().returning(PausedStageRow.stage)
    if tx.execute(new).first() is not None:
        _note(tx, act, stage)


def resume(tx: Connection, stage: StageId, act: Act | None = None) -> None:
    """End a stage's pause, if there is one. The caller rings the stage's queue."""
    if tx.execute(delete(PausedStageRow).where(*_is_of(stage))).rowcount:
        _note(tx, act, stage)


def _note(tx: Connection, act: Act | None, stage: StageId) -> None:
    if act is not None:
        act.note(tx, f"{stage.pipeline.name}.{stage.stage}", None)


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
