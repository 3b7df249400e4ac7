"""Claim: stage runs become a worker's, by compare-and-set, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select, tuple_, update

from omni_jobs.db import now
from omni_jobs.errors import Fenced
from omni_jobs.jobs.values import Claim
from omni_jobs.models import JobRow, StageRunRow, WorkerRow, state_seen
from omni_jobs.retry import RetryLimits, is_last_chance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef

__all__ = ["claim"]

_AnyRow = Row[*tuple[Any, ...]]

_LEASE = select(
    now().label("now"),
    select(WorkerRow.lease_until).where(WorkerRow.id == bindparam("worker")).scalar_subquery().label("until"),
)
_ids: BindParameter[Any] = bindparam("ids", expanding=True)
_pairs: BindParameter[Any] = bindparam("pairs", expanding=True)
_LOCK_JOBS_NOBODY_STARTED = (
    select(JobRow.id)
    .where(
        state_seen(JobRow.state, JobState.QUEUED),
        JobRow.id.in_(select(StageRunRow.job_id).where(StageRunRow.id.in_(_ids))),
    )
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
_COLUMNS = (
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.stage,
    StageRunRow.attempt,
    StageRunRow.inputs,
    StageRunRow.capture,
    StageRunRow.retries,
    StageRunRow.failures,
    StageRunRow.started_at,
)
_CLAIM_IF_QUEUED = (
    update(StageRunRow)
    .where(
        StageRunRow.id.in_(
            select(StageRunRow.id)
            .where(
                StageRunRow.id.in_(_ids),  # says no more than the pairs, but an index serves it
                tuple_(StageRunRow.id, StageRunRow.attempt).in_(_pairs),
                state_seen(StageRunRow.state, StageRunState.QUEUED),
                StageRunRow.due <= bindparam("at"),
            )
            .order_by(StageRunRow.id)
            .with_for_update(skip_locked=True)
        )
    )
    .values(
        state=StageRunState.RUNNING.value,
        attempt=StageRunRow.attempt + 1,
        owner=bindparam("worker"),
        started_at=bindparam("at"),
        reason=None,
        progress=None,
    )
    .returning(*_COLUMNS)
)
_CLAIMED_BEFORE = select(*_COLUMNS).where(
    StageRunRow.id.in_(_ids),
    tuple_(StageRunRow.id, StageRunRow.attempt).in_(_pairs),
    state_seen(StageRunRow.state, StageRunState.RUNNING),
    StageRunRow.owner == bindparam("worker"),
)
_START_IF_QUEUED = (
    update(JobRow)
    .where(JobRow.id.in_(_ids), state_seen(JobRow.state, JobState.QUEUED))
    .values(state=JobState.IN_PROGRESS.value, started_at=bindparam("at"))
)
_JOBS = select(
    JobRow.id,
    JobRow.pipeline,
    JobRow.pipeline_version,
    JobRow.request,
    JobRow.media,
    JobRow.seed,
    JobRow.modalities,
).where(JobRow.id.in_(_ids))
_PAYLOADS = select(StageRunRow.job_id, StageRunRow.stage, StageRunRow.payload_ref, StageRunRow.payload_inline).where(
    StageRunRow.job_id.in_(_ids), state_seen(StageRunRow.state, StageRunState.SUCCEEDED)
)


def claim(tx: Connection, worker_id: str, hints: Iterable[tuple[int, int]]) -> list[Claim]:
    """Claim what can be claimed of ``hints``; see :meth:`omni_jobs.jobs.Jobs.claim`."""
    lease = tx.execute(_LEASE, {"worker": worker_id}).one()
    if lease.until is None or lease.until <= lease.now:
        raise Fenced(f"worker {worker_id} has no lease")
    attempts: dict[int, int] = {}
    for stage_run_id, attempt in hints:
        attempts[stage_run_id] = max(attempt, attempts.get(stage_run_id, 0))
    if not attempts:
        return []
    started = set(tx.execute(_LOCK_JOBS_NOBODY_STARTED, {"ids": sorted(attempts)}).scalars())
    these = {"ids": sorted(attempts), "pairs": sorted(attempts.items()), "worker": worker_id}
    runs = list(tx.execute(_CLAIM_IF_QUEUED, {**these, "at": lease.now}))
    if len(runs) < len(attempts):
        missed = sorted(attempts.keys() - {run.id for run in runs})
        claimed = [(stage_run_id, attempts[stage_run_id] + 1) for stage_run_id in missed]
        runs += tx.execute(_CLAIMED_BEFORE, {"ids": missed, "pairs": claimed, "worker": worker_id})
    if not runs:
        return []
    job_ids = sorted({run.job_id for run in runs})
    started.intersection_update(job_ids)
    if started:
        tx.execute(_START_IF_QUEUED, {"ids": sorted(started), "at": lease.now})
    jobs = {job.id: job for job in tx.execute(_JOBS, {"ids": job_ids})}
    upstream = _upstream(tx, runs)
    order = {stage_run_id: n for n, stage_run_id in enumerate(attempts)}
    runs.sort(key=lambda run: order[run.id])
    return [_claim(run, jobs[run.job_id], upstream) for run in runs]


def _claim(run: _AnyRow, job: _AnyRow, upstream: Mapping[tuple[str, str], ObjectRef | bytes | None]) -> Claim:
    return Claim(
        stage_run_id=run.id,
        job_id=run.job_id,
        stage=run.stage,
        attempt=run.attempt,
        pipeline=job.pipeline,
        pipeline_version=job.pipeline_version,
        request=job.request,
        media=() if run.inputs else job.media,
        seed=job.seed,
        modalities=tuple(job.modalities),
        upstream={earlier: upstream[run.job_id, earlier] for earlier in run.inputs},
        capture=run.capture,
        failures=run.failures or {},
        alone=bool(run.failures) and is_last_chance(run.failures, RetryLimits(**(run.retries or {}))),
        claimed_at=run.started_at,
    )


def _upstream(tx: Connection, runs: Sequence[_AnyRow]) -> dict[tuple[str, str], ObjectRef | bytes | None]:
    """(job, stage) → its payload, for every stage run that takes any."""
    job_ids = sorted({run.job_id for run in runs if run.inputs})
    if not job_ids:
        return {}
    found: dict[tuple[str, str], ObjectRef | bytes | None] = {}
    for row in tx.execute(_PAYLOADS, {"ids": job_ids}):
        ref = row.payload_ref
        found[row.job_id, row.stage] = row.payload_inline if ref is None else ObjectRef.model_validate(ref)
    return found
