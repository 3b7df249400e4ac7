"""``check_artifacts``: a job that goes on from the stages of before needs the artifacts that these have made."""

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, select

from omni_jobs.database.tables import ArtifactRow, StageRunRow
from omni_jobs.errors import Conflict

_ARTIFACTS = (
    select(StageRunRow.stage, ArtifactRow.name)
    .join(ArtifactRow, ArtifactRow.stage_run_id == StageRunRow.id)
    .where(StageRunRow.job_id == bindparam("job"))
)


def check_artifacts(tx: Connection, job_id: str, makers: Mapping[str, str], advice: str) -> None:
    """Raise Conflict, which names what is gone and ends in ``advice``, unless a job still has these artifacts.

    ``makers``: the stage that has made each, by the artifact's name without its suffix.
    """
    if not makers:
        return
    kept = {(row.name.partition(".")[0], row.stage) for row in tx.execute(_ARTIFACTS, {"job": job_id})}
    gone = [f"{name} of stage {stage}" for name, stage in makers.items() if (name, stage) not in kept]
    if gone:
        text = f"of the artifacts of job {job_id} these are not kept any longer: {', '.join(gone)}"
        raise Conflict(f"{text}; {advice}", field="from_stage")
