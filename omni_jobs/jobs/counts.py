"""The numbers of jobs and stage runs in each state that is not final."""

from sqlalchemy import Connection, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.tables import JobRow, StageRunRow, state_is
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import Counts, StageCount

_ACTIVE = (JobState.QUEUED, JobState.IN_PROGRESS, JobState.CANCELLING)
_UNFINISHED = (StageRunState.PENDING, StageRunState.QUEUED, StageRunState.RUNNING)


def counts(tx: Connection) -> Counts:
    """Return the numbers of unfinished jobs by state, and of unfinished stage runs by pipeline, stage and state."""
    jobs = {
        state: tx.execute(select(func.count()).where(state_is(JobRow.state, state))).scalar_one() for state in _ACTIVE
    }
    stage_runs: list[StageCount] = []
    for state in _UNFINISHED:  # one query each, which that state's partial index serves
        rows = tx.execute(
            select(StageRunRow.pipeline, StageRunRow.stage, func.count().label("n"))
            .where(state_is(StageRunRow.state, state))
            .group_by(StageRunRow.pipeline, StageRunRow.stage)
            .order_by(StageRunRow.pipeline, StageRunRow.stage)
        )
        stage_runs += [StageCount(pipeline=row.pipeline, stage=row.stage, state=state, count=row.n) for row in rows]
    return Counts(jobs=jobs, stage_runs=stage_runs)


def queued_jobs(tx: Connection) -> dict[tuple[str, str], int]:
    """Return the number of jobs that nobody has started, by (pipeline, tenant); pairs without any are left out."""
    rows = tx.execute(
        select(JobRow.pipeline, JobRow.tenant, func.count().label("n"))
        .where(state_is(JobRow.state, JobState.QUEUED))
        .group_by(JobRow.pipeline, JobRow.tenant)
    )
    return {(row.pipeline, row.tenant): row.n for row in rows}


def claimable(tx: Connection, pipeline: str, stage: str, at_most: int) -> int:
    """Return the number of stage runs of a stage that are queued and due, ``at_most`` if there are more."""
    due = (
        select(StageRunRow.id)
        .where(
            StageRunRow.pipeline == pipeline,
            StageRunRow.stage == stage,
            state_is(StageRunRow.state, StageRunState.QUEUED),
            StageRunRow.due <= now(),
        )
        .limit(at_most)
    )
    return tx.execute(select(func.count()).select_from(due.subquery())).scalar_one()
