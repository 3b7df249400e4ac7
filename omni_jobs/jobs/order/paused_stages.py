"""Pause and resume stages. Workers of a paused stage claim nothing, and learn it with each renewal of their lease.

Stage runs in flight go on, deadlines too. A claim itself knows nothing of pauses, so workers may claim for another
heartbeat.

A pause of a stage holds all versions of its pipeline, also those that come. One of a version holds that version alone;
its number stands in it, because a version stays paused when its file is edited.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, and_, delete, exists, or_, select

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.seen_tables import PausedVersionRow, PipelineVersionRow
from omni_jobs.database.tables import PausedStageRow
from omni_jobs.identity import StageId


def pause(tx: Connection, stage: StageId, act: Act | None = None, version: str | None = None) -> None:
    """Pause a stage, of all versions or of this one: its workers claim nothing more, each after its next renewal.

    What is paused already keeps the time of its first pause. What its workers run goes on, and so do deadlines.
    Stages need no row, so the caller checks that there is such a stage.
    """
    values = {"pipeline": stage.pipeline.name, "stage": stage.stage, "at": now()}
    if version is None:
        of_all = insert_or(tx, PausedStageRow).values(**values)
        new = of_all.on_conflict_do_nothing().returning(PausedStageRow.stage)
    else:
        of_one = insert_or(tx, PausedVersionRow).values(**values, version=version)
        new = of_one.on_conflict_do_nothing().returning(PausedVersionRow.stage)
    if tx.execute(new).first() is not None:
        _note(tx, act, stage, version)


def resume(tx: Connection, stage: StageId, act: Act | None = None, version: str | None = None) -> None:
    """End a stage's pauses, if there are any, or that of this version alone. The caller rings the stage's queues.

    A version goes on waiting while the stage is paused for all.
    """
    its = (PausedVersionRow.pipeline == stage.pipeline.name, PausedVersionRow.stage == stage.stage)
    if version is not None:
        ended = tx.execute(delete(PausedVersionRow).where(*its, PausedVersionRow.version == version)).rowcount
    else:
        of_all = (PausedStageRow.pipeline == stage.pipeline.name, PausedStageRow.stage == stage.stage)
        ended = tx.execute(delete(PausedStageRow).where(*of_all)).rowcount
        ended += tx.execute(delete(PausedVersionRow).where(*its)).rowcount
    if ended:
        _note(tx, act, stage, version)


def _note(tx: Connection, act: Act | None, stage: StageId, version: str | None) -> None:
    if act is not None:
        pipeline = stage.pipeline.name if version is None else f"{stage.pipeline.name}@{version}"
        act.note(tx, f"{pipeline}.{stage.stage}", None)


def paused_stages(tx: Connection) -> dict[tuple[str, str], float]:
    """Return when each pause began, in seconds since 1970, by (pipeline, stage): NAME, or NAME@VERSION of one."""
    stages = tx.execute(select(PausedStageRow.pipeline, PausedStageRow.stage, PausedStageRow.at))
    found = {(row.pipeline, row.stage): row.at for row in stages}
    row = PausedVersionRow
    versions = tx.execute(select(row.pipeline, row.version, row.stage, row.at))
    return found | {(f"{each.pipeline}@{each.version}", each.stage): each.at for each in versions}


def paused_since(paused: Mapping[tuple[str, str], float], pipeline: str, version: str, stage: str) -> float | None:
    """Return since when a version's stage is paused, by itself or with all others; None: it is not."""
    places = ((pipeline, stage), (f"{pipeline}@{version}", stage))
    return min((paused[place] for place in places if place in paused), default=None)


def is_paused(tx: Connection, stage: StageId) -> bool:
    """Return whether a version's stage is paused."""
    known, alone = PipelineVersionRow, PausedVersionRow
    name = stage.pipeline.name
    of_all = exists().where(PausedStageRow.pipeline == name, PausedStageRow.stage == stage.stage)
    of_version = exists().where(
        and_(known.pipeline == alone.pipeline, known.version == alone.version),
        *(known.pipeline == name, known.digest == stage.pipeline.digest),
        *(alone.pipeline == name, alone.stage == stage.stage),
    )
    return bool(tx.execute(select(or_(of_all, of_version))).scalar_one())
