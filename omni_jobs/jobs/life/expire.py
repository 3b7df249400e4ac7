"""Expire: stop jobs past their deadline, and jobs that waited longer for a stage than its queue time limit."""

from collections.abc import Sequence

from sqlalchemy import Connection, Row, or_, select

from omni_jobs.database.clock import now
from omni_jobs.database.tables import JobRow, StageRunRow, state_is, state_seen
from omni_jobs.errors import DeadlineExceeded, Expired, QueueTimeLimit
from omni_jobs.jobs.life.successors import ACTIVE, Run
from omni_jobs.jobs.life.transition import JobTransition
from omni_jobs.states import StageRunState

EXPIRED_AT_ONCE = 500
"""The number of jobs that one transaction expires for each of the two reasons; the next may find more."""


def expire_late(tx: Connection) -> tuple[int, set[str]]:
    """Expire the jobs whose deadline or queue time limit is over. Return their number, and the queues to ring.

    If the number is EXPIRED_AT_ONCE or more, there may be others: call again. A job is cancelling while a stage of it
    runs.
    """
    at: float = tx.execute(select(now())).scalar_one()
    past_deadline = _past_deadline(tx, at)
    waited = _waited_too_long(tx, at)
    late = sorted(past_deadline | waited.keys())
    if not late:
        return 0, set()
    transition = JobTransition(tx, late)
    errors: dict[str, Expired | None] = {}
    for job_id in late:
        if transition.states.get(job_id) not in ACTIVE:
            continue
        runs = transition.runs_of(job_id)
        if job_id in past_deadline:
            errors[job_id] = _deadline_exceeded(runs)
        elif any(run.stage == waited[job_id].stage and run.state == StageRunState.QUEUED for run in runs):
            errors[job_id] = _queue_time_limit(runs, waited[job_id].stage, waited[job_id].queue_limit_s)
    if errors:
        transition.stop(errors)
        transition.write()
    return len(errors), transition.queues([])


def _past_deadline(tx: Connection, at: float) -> set[str]:
    """Return the ids of active jobs whose deadline has passed; of too many, those with the earliest deadlines."""
    return set(
        tx.execute(
            select(JobRow.id)
            .where(
                JobRow.finished_at.is_(None),
                JobRow.deadline <= at,
                or_(*(state_seen(JobRow.state, state) for state in ACTIVE)),  # the deadlines' index serves, no other
            )
            .order_by(JobRow.deadline)
            .limit(EXPIRED_AT_ONCE)
        ).scalars()
    )


def _waited_too_long(tx: Connection, at: float) -> dict[str, Row[str, str, float | None]]:
    """Return the stage runs (job_id, stage, queue_limit_s) that have waited too long, one for each job id."""
    rows = tx.execute(
        select(StageRunRow.job_id, StageRunRow.stage, StageRunRow.queue_limit_s)
        .where(state_is(StageRunRow.state, StageRunState.QUEUED), StageRunRow.queue_deadline <= at)
        .order_by(StageRunRow.queue_deadline)
        .limit(EXPIRED_AT_ONCE)
    )
    return {row.job_id: row for row in rows}


def _deadline_exceeded(runs: Sequence[Run]) -> DeadlineExceeded:
    stages = [run.stage for run in runs if run.state in (StageRunState.RUNNING, StageRunState.QUEUED)]
    when = f"while it was at {', '.join(stages)}" if _has_started(runs) else "before any stage of it started"
    return DeadlineExceeded(f"the job's deadline passed {when}")


def _queue_time_limit(runs: Sequence[Run], stage: str, limit_s: float | None) -> QueueTimeLimit:
    never = "" if _has_started(runs) else "; no stage of it ever started"
    return QueueTimeLimit(f"waited longer than {limit_s:g} s for stage {stage}{never}", stage=stage)


def _has_started(runs: Sequence[Run]) -> bool:
    return any(run.attempt for run in runs)
