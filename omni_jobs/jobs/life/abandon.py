"""Abandon: a request that waited for its job has lost its client. Unless somebody asks for the job, it is cancelled.

The note stands in SQL, so that any server may be asked, and a rescuer cancels the job after the server has stopped.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, Text, bindparam, delete, select

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import AbandonedJobRow, WatchedJobRow
from omni_jobs.jobs.life.report import free_keys
from omni_jobs.jobs.life.successors import ACTIVE
from omni_jobs.jobs.life.transition import JobTransition

ABANDONED_S = 60.0
"""How long after its client has left a job is cancelled."""
CANCELLED_AT_ONCE = 500
"""The number of abandoned jobs that one transaction cancels; the next may find more."""


_ids = bindparam("ids", type_=Text)


def abandon(tx: Connection, job_ids: Sequence[str]) -> None:
    """Note that the clients of these jobs have left. A job that is abandoned already stays so since then."""
    if job_ids:
        insert = insert_or(tx, AbandonedJobRow).values(at=now()).on_conflict_do_nothing()
        tx.execute(insert, [{"job_id": job_id} for job_id in sorted(job_ids)])


def abandoned(tx: Connection, job_ids: Sequence[str]) -> list[str]:
    """Return those of these jobs whose client has left, and for which nobody has asked since then."""
    found = select(AbandonedJobRow.job_id).where(one_of(AbandonedJobRow.job_id, _ids))
    return list(tx.execute(found, {"ids": listed(job_ids)}).scalars())


def ask_for(tx: Connection, job_ids: Sequence[str]) -> None:
    """Note that somebody asks for these jobs, so that they go on."""
    possible = sorted(job_id for job_id in job_ids if job_id.isprintable())  # PostgreSQL's text refuses surrogates
    tx.execute(delete(AbandonedJobRow).where(one_of(AbandonedJobRow.job_id, _ids)), {"ids": listed(possible)})


def cancel_abandoned(tx: Connection, answers_since: float = 0.0) -> tuple[int, set[str]]:
    """Cancel the jobs for which nobody has asked in time. Return how many were looked at, and the queues to ring.

    The time begins anew where the database was away, because nobody could ask: it answers since ``answers_since``,
    seconds of its clock. A job that is watched meanwhile goes on, because whoever watches it asked for it before its
    client left. A cancelled job loses its idempotency key: a client that comes again after all gets a new job. If the
    number is CANCELLED_AT_ONCE, there may be others: call again.
    """
    row = AbandonedJobRow
    due = (
        select(row.job_id)
        .where(row.at <= now() - ABANDONED_S, now() >= answers_since + ABANDONED_S)
        .order_by(row.at, row.job_id)
        .limit(CANCELLED_AT_ONCE)
        .with_for_update(skip_locked=True)  # somebody asks for those just now
    )
    job_ids = sorted(tx.execute(due).scalars())
    if not job_ids:
        return 0, set()
    transition = JobTransition(tx, job_ids)
    seen = WatchedJobRow
    watched = set(tx.execute(select(seen.job_id).where(seen.job_id.in_(job_ids), seen.until > now())).scalars())
    active = {job_id: None for job_id in job_ids if transition.states.get(job_id) in ACTIVE and job_id not in watched}
    if active:
        transition.stop(active)
        transition.write()
        free_keys(tx, active)
    tx.execute(delete(row).where(row.job_id.in_(job_ids)))
    return len(job_ids), transition.queues([])
