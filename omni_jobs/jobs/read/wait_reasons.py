"""``wait_reasons``: why the newest jobs of each stage wait, without the views of these jobs."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, Text, bindparam, select

from omni_jobs.database.clock import now
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import AnyRow, listed
from omni_jobs.database.tables import JobRow, StageRunRow
from omni_jobs.jobs.read.matching import matching
from omni_jobs.jobs.read.waits import waits
from omni_jobs.jobs.values import JobFilter
from omni_jobs.states import JobState

_SEEN: Final = 60  # of the newest jobs that have not ended
_ACTIVE: Final = frozenset({JobState.QUEUED, JobState.IN_PROGRESS})

_ids = bindparam("ids", type_=Text)
_JOBS = (
    select(
        JobRow.id,
        JobRow.state,
        JobRow.pipeline,
        JobRow.pipeline_version,
        JobRow.pipeline_digest,
        JobRow.tenant,
        JobRow.priority,
    )
    .where(one_of(JobRow.id, _ids))
    .order_by(JobRow.id.desc())
)
_RUNS = select(
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.position,
    StageRunRow.stage,
    StageRunRow.state,
    StageRunRow.reason,
    StageRunRow.turn,
    StageRunRow.due,
    (StageRunRow.due > now()).label("is_early"),
).where(one_of(StageRunRow.job_id, _ids))


def wait_reasons(tx: Connection, tenant: str | None = None) -> Mapping[tuple[str, str, str], str]:
    """Return why the newest jobs of a tenant wait, as in ``WaitingView``, by pipeline, version and stage.

    None: those of all.
    """
    ids = matching(tx, JobFilter(states=_ACTIVE, tenant=tenant), _SEEN).ids
    if not ids:
        return {}
    jobs = tx.execute(_JOBS, {"ids": listed(ids)}).all()
    runs: dict[str, list[AnyRow]] = defaultdict(list)
    for run in sorted(tx.execute(_RUNS, {"ids": listed(ids)}), key=lambda run: run.position):
        runs[run.job_id].append(run)
    waiting = waits(tx, jobs, runs, None)
    return {
        (job.pipeline, job.pipeline_version, view.stage): view.reason
        for job in jobs
        if (view := waiting.get(job.id)) is not None
    }
