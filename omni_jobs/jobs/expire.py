"""Expiry: jobs past their deadline, and jobs that waited for a stage longer than it lets them."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select

from omni_jobs.database.clock import now
from omni_jobs.database.tables import JobRow, StageRunRow, state_is, state_seen
from omni_jobs.errors import DeadlineExceeded, Expired, QueueTimeLimit
from omni_jobs.jobs.transition import JobTransition
from omni_jobs.states import JobState, StageRunState

__all__ = ["EXPIRED_AT_ONCE", "expire_late"]

EXPIRED_AT_ONCE = 500  # jobs in one transaction

_ACTIVE = (JobState.QUEUED, JobState.IN_PROGRESS)


def expire_late(tx: Connection, *, announce_after_s: float) -> int:
    """Stop up to EXPIRED_AT_ONCE jobs whose time is over; how many there were."""
    at: float = tx.execute(select(now())).scalar_one()
    past_deadline = set(
        tx.execute(
            select(JobRow.id)
            .where(
                JobRow.finished_at.is_(None),
                JobRow.deadline <= at,
                or_(*(state_seen(JobRow.state, state) for state in _ACTIVE)),  # the deadlines' index serves, no other
            )
            .order_by(JobRow.deadline)
            .limit(EXPIRED_AT_ONCE)
        ).scalars()
    )
    waited = {
        row.job_id: row
        for row in tx.execute(
            select(StageRunRow.job_id, StageRunRow.stage, StageRunRow.queue_limit_s)
            .where(state_is(StageRunRow.state, StageRunState.QUEUED), StageRunRow.queue_deadline <= at)
            .order_by(StageRunRow.queue_deadline)
            .limit(EXPIRED_AT_ONCE)
        )
    }
    late = sorted(past_deadline | waited.keys())
    if not late:
        return 0
    transition = JobTransition(tx, late, announce_after_s=announce_after_s)
    errors: dict[str, Expired | None] = {}
    for job_id in late:
        if transition.states.get(job_id) not in _ACTIVE:
            continue
        runs = transition.runs_of(job_id)
        started = any(run.attempt for run in runs)
        if job_id in past_deadline:
            where = [run.stage for run in runs if run.state in (StageRunState.RUNNING, StageRunState.QUEUED)]
            when = f"while it was at {', '.join(where)}" if started else "before any stage of it started"
            errors[job_id] = DeadlineExceeded(f"the job's deadline passed {when}")
        elif any(run.stage == waited[job_id].stage and run.state == StageRunState.QUEUED for run in runs):
            stage, limit = waited[job_id].stage, waited[job_id].queue_limit_s
            when = "" if started else "; no stage of it ever started"
            errors[job_id] = QueueTimeLimit(f"waited longer than {limit:g} s for stage {stage}{when}", stage=stage)
    if errors:
        transition.stop(errors)
        transition.commit()
    return len(errors)
