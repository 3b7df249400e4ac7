"""Prune: delete the data of jobs that ended long enough ago, and old events.

The pruner checks a job when its ``prune_at`` has come. It deletes in SQL the data that are due, and writes rows of
``garbage`` for their objects in the same transaction, so that after a crash the next pruner still finds the objects.
Jobs that have not ended have no ``prune_at``. It was computed from the retention of whoever wrote it. If the pruner's
is longer, it checks the job early and computes ``prune_at`` anew; if shorter, ``hasten`` finds the jobs that are due.
"""

import operator
from collections.abc import Collection, Sequence
from functools import reduce

from sqlalchemy import (
    Connection,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    null,
    or_,
    select,
    true,
    update,
)

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import AnyRow, Statements, listed
from omni_jobs.database.tables import (
    ArtifactRow,
    EventRow,
    ForkRow,
    GarbageRow,
    JobRow,
    KeepingJobRow,
    SharedObjectRow,
    StageRunRow,
    TracedJobRow,
    WatchedJobRow,
    state_seen,
)
from omni_jobs.errors import Conflict, NotFound
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.jobs.keep.garbage import INSERT_GARBAGE, note_shared_objects
from omni_jobs.jobs.keep.retention import KEEPS_PAYLOADS, KINDS, Retention
from omni_jobs.jobs.values import PruneResult
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import job_prefix

_sql = Statements(__file__)
_ids = bindparam("ids", type_=Text)
# The rows that go with their job; a watched one's with its texts.
_BESIDE_JOBS = (EventRow, WatchedJobRow, KeepingJobRow, TracedJobRow, ForkRow, SharedObjectRow)
_SET_PRUNED = _sql.bulk("set_pruned", "job prune_at payloads_gone inputs_gone artifacts_gone")
_DROP_PAYLOADS = (
    update(StageRunRow)
    .where(
        one_of(StageRunRow.job_id, _ids),
        or_(StageRunRow.payload_ref.is_not(None), StageRunRow.payload_inline.is_not(None)),
    )
    .values(payload_ref=null(), payload_inline=null(), payload_gone=true())
)
# The jobs that may have payloads in the object store: with a payload that is not inline, or an attempt that was lost.
_WITH_STORED_PAYLOADS = (
    select(StageRunRow.job_id)
    .where(one_of(StageRunRow.job_id, _ids))
    .group_by(StageRunRow.job_id)
    .having(
        or_(
            func.count(StageRunRow.payload_ref) > 0,
            func.max(StageRunRow.attempt) > 1,
            func.count().filter(StageRunRow.state != StageRunState.SUCCEEDED.value) > 0,
        )
    )
)


def prune(tx: Connection, retention: Retention, at_most: int = 500) -> PruneResult:
    """Delete what ``retention`` keeps no longer: data of up to ``at_most`` jobs, and up to ``at_most`` old events.

    Objects are only noted as garbage. Call again until ``checked`` and ``events`` of the result are 0.
    """
    at: float = tx.execute(select(now())).scalar_one()
    jobs = tx.execute(
        select(
            JobRow.id,
            JobRow.state,
            JobRow.media,
            JobRow.finished_at,
            JobRow.payloads_gone,
            JobRow.inputs_gone,
            JobRow.artifacts_gone,
            KEEPS_PAYLOADS,
        )
        .where(JobRow.prune_at <= at, JobRow.finished_at.is_not(None))
        .order_by(JobRow.prune_at)
        .limit(at_most)
        .with_for_update(skip_locked=True)
    ).all()
    events = _prune_events(tx, at - retention.events_s, at_most)
    if not jobs:
        return PruneResult(events=events)
    ids_of_all = [job.id for job in jobs]
    before = stored_bytes.of_jobs(tx, ids_of_all)
    deleted = [job.id for job in jobs if job.finished_at + retention.jobs_s <= at]
    due_now: dict[str, list[AnyRow]] = {kind: [] for kind in KINDS}
    rows = []
    for job in jobs:
        if (job_due := job.finished_at + retention.jobs_s) > at:
            due = retention.due(job)
            later = {kind: due[kind] for kind in due if due[kind] > at}
            for kind in due.keys() - later.keys():
                due_now[kind].append(job)
            rows.append((job.id, min([job_due, *later.values()]), *(kind not in later for kind in KINDS)))
    payloads, inputs, artifacts = due_now.values()
    _delete(tx, deleted)
    note_shared_objects(tx, [job.id for job in (*payloads, *artifacts)])
    if payloads:
        ids = {"ids": listed(job.id for job in payloads)}
        with_objects = sorted(tx.execute(_WITH_STORED_PAYLOADS, ids).scalars())
        INSERT_GARBAGE.run(tx, [(job_id, f"{job_prefix(job_id)}payloads/") for job_id in with_objects])
        tx.execute(_DROP_PAYLOADS, ids)
    INSERT_GARBAGE.run(tx, [(job.id, f"{job_prefix(job.id)}inputs/") for job in inputs if job.media])
    INSERT_GARBAGE.run(tx, [(job.id, f"{job_prefix(job.id)}artifacts/") for job in artifacts])
    if artifacts:
        tx.execute(delete(ArtifactRow).where(ArtifactRow.job_id.in_([job.id for job in artifacts])))
    _SET_PRUNED.run(tx, rows)
    stored_bytes.add(tx, stored_bytes.change(before, stored_bytes.of_jobs(tx, ids_of_all)))
    return PruneResult(
        checked=len(jobs),
        payloads=len(payloads),
        inputs=len(inputs),
        artifacts=len(artifacts),
        jobs=len(deleted),
        events=events,
    )


def hasten(tx: Connection, retention: Retention, after: float | None = None, at_most: int = 5000) -> float | None:
    """Make due at once the ended jobs of which ``retention`` keeps something no longer.

    Look at a page of about ``at_most`` jobs in the order of ``prune_at``, those later than ``after``; None begins with
    the jobs that are not due yet. Return the last ``prune_at`` of the page, to be the next ``after``. Return None when
    no job is left.
    """
    at: float = tx.execute(select(now())).scalar_one()
    after = at if after is None else after
    page = select(JobRow.prune_at).where(JobRow.prune_at > after).order_by(JobRow.prune_at).limit(at_most).subquery()
    last = tx.execute(select(func.max(page.c.prune_at))).scalar_one()
    if last is None:
        return None
    of_page = and_(JobRow.prune_at > after, JobRow.prune_at <= last)
    stale = select(JobRow.id).where(of_page, JobRow.finished_at.is_not(None), retention.is_due(at))
    due = tx.execute(stale.with_for_update(skip_locked=True)).scalars().all()
    if due:
        tx.execute(update(JobRow).where(one_of(JobRow.id, _ids)).values(prune_at=at), {"ids": listed(due)})
    return float(last)


def _prune_events(tx: Connection, before: float, at_most: int) -> int:
    """Delete up to ``at_most`` events that were written before this time. Return their number."""
    oldest = select(EventRow.id).where(EventRow.at <= before).order_by(EventRow.at).limit(at_most)
    return tx.execute(delete(EventRow).where(EventRow.id.in_(oldest))).rowcount


def _delete(tx: Connection, job_ids: Sequence[str]) -> None:
    """Delete these jobs with all their rows, and note their objects as garbage."""
    if job_ids:
        INSERT_GARBAGE.run(tx, [(job_id, job_prefix(job_id)) for job_id in job_ids])
        note_shared_objects(tx, job_ids)
        for row in _BESIDE_JOBS:
            tx.execute(delete(row).where(row.job_id.in_(job_ids)))
        tx.execute(delete(JobRow).where(JobRow.id.in_(job_ids)))


def delete_jobs(
    tx: Connection, job_ids: Sequence[str], act: Act | None = None, states: Collection[JobState] | None = None
) -> set[str]:
    """Delete those of these jobs that have ended, as ``delete_job`` does, and return their ids.

    ``states``: only those that are in one of them.
    """
    wanted = [state for state in JobState if state.is_final and (states is None or state in states)]
    has_ended = reduce(operator.or_, (state_seen(JobRow.state, state) for state in wanted), false())
    columns = (JobRow.id, JobRow.tenant)
    query = select(*columns).where(one_of(JobRow.id, _ids), has_ended).order_by(JobRow.id).with_for_update()
    found = tx.execute(query, {"ids": listed(job_ids)}).all()
    ended = [row.id for row in found]
    before = stored_bytes.of_jobs(tx, ended)
    _delete(tx, ended)
    stored_bytes.add(tx, stored_bytes.change(before, {}))
    if act is not None and ended:
        tenants = {row.tenant for row in found}
        act.note(tx, ended[0], tenants.pop() if len(tenants) == 1 else None, job_ids=ended)
    return set(ended)


def delete_job(tx: Connection, job_id: str, act: Act | None = None) -> None:
    """Delete a job with its events, and note its objects as garbage. Raises NotFound, and Conflict before its end.

    A repeated call returns without an error until the pruner has deleted the objects.
    """
    job = None
    if job_id.isprintable():
        query = select(JobRow.state, JobRow.tenant).where(JobRow.id == job_id).with_for_update()
        job = tx.execute(query).one_or_none()
        is_garbage = exists().where(GarbageRow.owner == job_id, GarbageRow.what == job_prefix(job_id))
        if job is None and tx.execute(select(is_garbage)).scalar_one():
            return  # deleted a moment ago, perhaps by an earlier try of this transaction
    if job is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    if not JobState(job.state).is_final:
        raise Conflict(f"job {job_id} is {job.state}: cancel it first", field="job_id")
    before = stored_bytes.of_jobs(tx, [job_id])
    _delete(tx, [job_id])
    stored_bytes.add(tx, stored_bytes.change(before, {}))
    if act is not None:
        act.note(tx, job_id, job.tenant)
