"""The numbers of jobs and stage runs in each state that is not final, and the bytes of their media."""

from sqlalchemy import Connection, Select, bindparam, func, or_, select, text

from omni_jobs.database.statement import AnyRow
from omni_jobs.database.tables import JobRow, StageRunRow, literal, state_is, state_seen
from omni_jobs.jobs.keep.stored_bytes import of_media
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import Counts, StageCount

_UNFINISHED_JOBS = (JobState.QUEUED, JobState.IN_PROGRESS, JobState.CANCELLING)
_UNFINISHED_RUNS = (StageRunState.PENDING, StageRunState.QUEUED, StageRunState.RUNNING)


_GROUP = (StageRunRow.pipeline, StageRunRow.stage, StageRunRow.pipeline_digest)

# Of each unfinished job the stage runs, found by the job's id: no index of all tenants' stage runs is read.
_of_tenant = (
    select(JobRow.id)
    .where(JobRow.tenant == bindparam("tenant"), or_(*(state_is(JobRow.state, state) for state in _UNFINISHED_JOBS)))
    .subquery()
)
_STAGE_RUNS_OF_TENANT = (
    select(*_GROUP, StageRunRow.state, func.count().label("n"))
    .join_from(_of_tenant, StageRunRow, StageRunRow.job_id == _of_tenant.c.id)
    .where(or_(*(state_seen(StageRunRow.state, state) for state in _UNFINISHED_RUNS)))
    .group_by(*_GROUP, StageRunRow.state)
    .order_by(StageRunRow.state, *_GROUP)
)

# No table has the bytes in a column of its own. The states are there for the index.
_UNFINISHED_MEDIA = (
    "FROM jobs, {each} WHERE state IN ('queued', 'in_progress', 'cancelling') AND tenant = :tenant"
    " AND NOT CAST(inputs_gone AS boolean)"
)
_MEDIA_OF_JOB = select(JobRow.media).where(
    JobRow.id == bindparam("job_id"), JobRow.tenant == bindparam("tenant"), JobRow.inputs_gone.is_(False)
)
_MEDIA_BYTES = {
    "sqlite": "SELECT sum(json_extract(value, '$.size')) " + _UNFINISHED_MEDIA.format(each="json_each(media)"),
    "postgresql": "SELECT sum((value ->> 'size')::bigint) "
    + _UNFINISHED_MEDIA.format(each="json_array_elements(media::json) AS each(value)"),
}


def counts(tx: Connection, tenant: str | None = None) -> Counts:
    """Return the numbers of unfinished jobs by state, and of unfinished stage runs by their file, stage and state.

    They are those of a tenant, or of all (None). For a tenant only the stage runs of its own unfinished jobs are read.
    """
    of_tenant = [] if tenant is None else [JobRow.tenant == tenant]
    jobs = {
        state: tx.execute(select(func.count()).where(state_is(JobRow.state, state), *of_tenant)).scalar_one()
        for state in _UNFINISHED_JOBS
    }
    found = _stage_runs(tx) if tenant is None else tx.execute(_STAGE_RUNS_OF_TENANT, {"tenant": tenant}).all()
    return Counts(jobs=jobs, stage_runs=[_stage_count(row) for row in found])


def _stage_count(row: AnyRow) -> StageCount:
    return StageCount(
        pipeline=row.pipeline,
        pipeline_digest=row.pipeline_digest,
        stage=row.stage,
        state=StageRunState(row.state),
        count=row.n,
    )


def _stage_runs(tx: Connection) -> list[AnyRow]:
    """Return the counts of all tenants' unfinished stage runs. The partial index of each state serves its query."""
    return [row for state in _UNFINISHED_RUNS for row in tx.execute(stage_runs_in(state))]


def stage_runs_in(state: StageRunState) -> Select[str, str, str, str, int]:
    """Return the query for the counts of all tenants' stage runs in a state that is not final."""
    counted = select(*_GROUP, literal(state).label("state"), func.count().label("n"))
    return counted.where(state_is(StageRunRow.state, state)).group_by(*_GROUP).order_by(*_GROUP)


def queued_jobs(tx: Connection) -> dict[tuple[str, str], int]:
    """Return the number of jobs that nobody has started, by (pipeline, tenant); pairs without any are left out."""
    rows = tx.execute(
        select(JobRow.pipeline, JobRow.tenant, func.count().label("n"))
        .where(state_is(JobRow.state, JobState.QUEUED))
        .group_by(JobRow.pipeline, JobRow.tenant)
    )
    return {(row.pipeline, row.tenant): row.n for row in rows}


def jobs_in_progress(tx: Connection) -> dict[str, int]:
    """Return the number of jobs in progress by tenant; tenants without any are left out.

    The limit ``running_jobs`` counts more (``omni_jobs.jobs.order.quota``): also the jobs that were let in and wait.
    """
    tenant = JobRow.tenant.concat("")  # by the index of tenants SQLite would read every job
    rows = tx.execute(
        select(tenant.label("tenant"), func.count().label("n"))
        .where(state_is(JobRow.state, JobState.IN_PROGRESS))
        .group_by(tenant)
    )
    return {row.tenant: row.n for row in rows}


def media_bytes(tx: Connection, tenant: str, job_id: str | None = None) -> int:
    """Return the bytes of the media kept of a tenant's unfinished jobs; with a ``job_id``, of that job alone."""
    if job_id is not None:
        return of_media(tx.execute(_MEDIA_OF_JOB, {"job_id": job_id, "tenant": tenant}).scalar_one_or_none() or ())
    return int(tx.execute(text(_MEDIA_BYTES[tx.dialect.name]), {"tenant": tenant}).scalar_one() or 0)
