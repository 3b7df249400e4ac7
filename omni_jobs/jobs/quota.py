"""Quota: of a tenant with the limit ``running_jobs`` so many unfinished jobs are let in at a time; others are held.

A job that is let in waits in its stages' lines and runs as any other. A submit or a retry of such a tenant writes a row
for the job, which goes when the job ends. Until the job is let in, the stage runs that could be queued are pending with
the reason QUOTA. Jobs without a row are not limited.

The locks of tenants' rows are taken after all others, in the order of their names, and who holds one waits for no other
kind of row: held jobs that another transaction has locked are passed over. Each transaction that makes room or adds a
job lets in under this lock what there is room for, so the last of several sees what all of them have done. The rescuer
lets in what is left: where a limit was changed, or a job was passed over.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, select

from omni_jobs.database.statement import bulk, execute_pipelined, listed, statement
from omni_jobs.database.tables import QuotaJobRow, decode_json

LET_IN_AT_ONCE = 500
"""The most jobs of a tenant that one transaction lets in. The rescuer calls ``let_in`` until it lets in none."""

_INSERT = bulk("insert_quota_jobs_unless_there", "job_id", "tenant", "turn")
_TENANTS = select(QuotaJobRow.tenant).where(QuotaJobRow.is_let_in.is_(False)).distinct()


def running_limit(limits: str) -> int | None:
    """Return ``running_jobs`` of the JSON in a tenant's column ``limits``; None: no limit."""
    return decode_json(limits).get("running_jobs")  # type: ignore[no-any-return]


def enter(tx: Connection, jobs: Sequence[tuple[str, str, int]]) -> set[str]:
    """Put these jobs (id, tenant, turn) under their tenants' limits, let in what there is room for.

    Return the queues to ring: also those of jobs that were held before. The caller has written the stage runs that
    could be queued as pending with the reason QUOTA. A job that has a row already keeps it.
    """
    _INSERT.run(tx, jobs)
    return let_in(tx, (tenant for _, tenant, _ in jobs))


def let_in(tx: Connection, tenants: Iterable[str]) -> set[str]:
    """Let in as many held jobs of these tenants as there is room for, and return the queues to ring.

    The lowest turns come first. They are raised to the highest turn that the pipeline's workers have claimed. A tenant
    without the limit has room for LET_IN_AT_ONCE. The tenants' rows stay locked until the transaction's end.
    """
    queues: set[str] = set()
    for tenant in sorted(set(tenants)):
        its = {"tenant": tenant}
        # Each statement sees what is committed when it begins, so the count sees all that the lock waited for.
        rows, [(inside,)] = execute_pipelined(tx, [(statement("lock_tenant"), its), (statement("count_let_in"), its)])
        limit = running_limit(rows[0][0]) if rows else None
        room = LET_IN_AT_ONCE if limit is None else min(limit - inside, LET_IN_AT_ONCE)
        if room <= 0:
            continue
        jobs = [job_id for (job_id,) in statement("let_in").rows(tx, {**its, "at_most": str(room)})]
        if jobs:
            ids = {"ids": listed(jobs)}
            _, queued = execute_pipelined(tx, [(statement("raise_turns"), ids), (statement("queue_if_held"), ids)])
            queues.update(queue for (queue,) in queued)
    return queues


def forget(tx: Connection, job_ids: Iterable[str]) -> None:
    """Delete the rows of these jobs, if they have any. It makes room, and lets in nobody."""
    statement("delete_quota_jobs").run(tx, {"ids": listed(job_ids)})


def leave(tx: Connection, jobs: Mapping[str, str]) -> set[str]:
    """Forget these jobs (id to tenant), because they end; let in others and return the queues to ring."""
    forget(tx, jobs)
    return let_in(tx, jobs.values())


def tenants_with_held_jobs(tx: Connection) -> Sequence[str]:
    """Return the tenants of held jobs."""
    return tx.execute(_TENANTS).scalars().all()


def limits(tx: Connection, tenants: Iterable[str]) -> dict[str, int | None]:
    """Return the limit ``running_jobs`` of each of these tenants that has a row; None: no limit."""
    rows = statement("weights_and_limits").rows(tx, {"ids": listed(tenants)})
    return {name: running_limit(its_limits) for name, _, its_limits in rows}
