"""Claim: stage runs become a worker's, by compare-and-set, many at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, exists, literal_column, null, select, type_coerce, update

from omni_jobs.batch import in_pairs, listed, one_of
from omni_jobs.db import now
from omni_jobs.errors import Fenced
from omni_jobs.jobs.values import Claim
from omni_jobs.models import JobRow, StageRunRow, WorkerRow, decode_json, literal, state_seen
from omni_jobs.retry import RetryLimits, is_last_chance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef

__all__ = ["Claimed", "claim"]

_AnyRow = Row[*tuple[Any, ...]]

_HAS_LEASE = exists().where(WorkerRow.id == bindparam("worker"), WorkerRow.lease_until > now())
_ids = bindparam("ids", type_=Text)
_IN_PAIRS = in_pairs(StageRunRow.id, StageRunRow.attempt, bindparam("pairs", type_=Text))
# JSON as text: it is read when the transaction has ended.
_OF_JOB = (
    JobRow.id,
    JobRow.pipeline,
    JobRow.pipeline_version,
    type_coerce(JobRow.request, Text).label("request"),
    type_coerce(JobRow.media, Text).label("media"),
    JobRow.seed,
    type_coerce(JobRow.modalities, Text).label("modalities"),
)
_LOCK_JOBS_NOBODY_STARTED = (
    select(*_OF_JOB)
    .where(
        state_seen(JobRow.state, JobState.QUEUED),
        JobRow.id.in_(select(StageRunRow.job_id).where(one_of(StageRunRow.id, _ids))),
    )
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
_OF_STAGE_RUN = (
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.stage,
    StageRunRow.attempt,
    type_coerce(StageRunRow.inputs, Text).label("inputs"),
    StageRunRow.capture,
    type_coerce(StageRunRow.retries, Text).label("retries"),
    type_coerce(StageRunRow.failures, Text).label("failures"),
    StageRunRow.started_at,
)
_CLAIM_IF_QUEUED = (
    update(StageRunRow)
    .where(
        StageRunRow.id.in_(
            select(StageRunRow.id)
            .where(
                *_IN_PAIRS,
                state_seen(StageRunRow.state, StageRunState.QUEUED),
                StageRunRow.due <= now(),
                _HAS_LEASE,
            )
            .order_by(StageRunRow.id)
            .with_for_update(skip_locked=True, of=StageRunRow)
            .correlate(None)
        )
    )
    .values(
        state=literal(StageRunState.RUNNING),
        attempt=StageRunRow.attempt + literal_column("1"),
        owner=bindparam("worker"),
        started_at=now(),
        reason=null(),
        progress=null(),
    )
    .returning(*_OF_STAGE_RUN)
)
_CLAIMED_BEFORE = select(*_OF_STAGE_RUN).where(
    *_IN_PAIRS,
    state_seen(StageRunRow.state, StageRunState.RUNNING),
    StageRunRow.owner == bindparam("worker"),
)
_START_IF_QUEUED = (
    update(JobRow)
    .where(one_of(JobRow.id, _ids), state_seen(JobRow.state, JobState.QUEUED))
    .values(state=literal(JobState.IN_PROGRESS), started_at=bindparam("at"))
)
_JOBS = select(*_OF_JOB).where(one_of(JobRow.id, _ids))
_PAYLOADS = select(
    StageRunRow.job_id,
    StageRunRow.stage,
    type_coerce(StageRunRow.payload_ref, Text).label("payload_ref"),
    StageRunRow.payload_inline,
).where(one_of(StageRunRow.job_id, _ids), state_seen(StageRunRow.state, StageRunState.SUCCEEDED))


@dataclass(frozen=True, slots=True)
class Claimed:
    """Rows of stage runs that are the worker's now; read when the transaction has ended."""

    _runs: Sequence[_AnyRow] = ()  # in the order of the hints
    _jobs: Mapping[str, _AnyRow] = field(default_factory=dict)
    _payloads: Mapping[tuple[str, str], _AnyRow] = field(default_factory=dict)  # by job and stage that made it

    def read(self) -> list[Claim]:
        return [self._claim(run) for run in self._runs]

    def _claim(self, run: _AnyRow) -> Claim:
        id_, job_id, stage, attempt, takes, capture, limits, failed, started_at = run
        _, pipeline, version, request, media, seed, modalities = self._jobs[job_id]
        inputs = _names(takes)
        failures = {} if failed is None else json.loads(failed)
        return Claim(
            stage_run_id=id_,
            job_id=job_id,
            stage=stage,
            attempt=attempt,
            pipeline=pipeline,
            pipeline_version=version,
            request=decode_json(request),
            media=() if inputs or media == "[]" else json.loads(media),
            seed=seed,
            modalities=_names(modalities),
            upstream={earlier: _payload(self._payloads[job_id, earlier]) for earlier in inputs},
            capture=capture,
            failures=failures,
            alone=bool(failures) and is_last_chance(failures, RetryLimits(**json.loads(limits or "{}"))),
            claimed_at=started_at,
        )


def claim(tx: Connection, worker_id: str, hints: Iterable[tuple[int, int]]) -> Claimed:
    """Claim what can be claimed of ``hints``; see :meth:`omni_jobs.jobs.Jobs.claim`."""
    attempts: dict[int, int] = {}
    for stage_run_id, attempt in hints:
        attempts[stage_run_id] = max(attempt, attempts.get(stage_run_id, 0))
    if not attempts:
        return Claimed()
    nobody_started = tx.execute(_LOCK_JOBS_NOBODY_STARTED, {"ids": listed(attempts)}).all()
    jobs: dict[str, _AnyRow] = {job.id: job for job in nobody_started}
    these = {"pairs": listed(attempts.items()), "worker": worker_id}
    runs = list(tx.execute(_CLAIM_IF_QUEUED, these).all())
    if len(runs) < len(attempts):
        if not tx.execute(select(_HAS_LEASE), {"worker": worker_id}).scalar_one():
            raise Fenced(f"worker {worker_id} has no lease")
        missed = attempts.keys() - {run.id for run in runs}
        claimed = [(stage_run_id, attempts[stage_run_id] + 1) for stage_run_id in missed]
        runs += tx.execute(_CLAIMED_BEFORE, {"pairs": listed(claimed), "worker": worker_id})
    if not runs:
        return Claimed()
    if started := sorted(jobs.keys() & {run.job_id for run in runs}):
        tx.execute(_START_IF_QUEUED, {"ids": listed(started), "at": runs[0].started_at})
    if others := {run.job_id for run in runs} - jobs.keys():
        jobs.update((job.id, job) for job in tx.execute(_JOBS, {"ids": listed(others)}).all())
    payloads: dict[tuple[str, str], _AnyRow] = {}
    if takers := {run.job_id for run in runs if _names(run.inputs)}:
        found = tx.execute(_PAYLOADS, {"ids": listed(takers)}).all()
        payloads = {(payload.job_id, payload.stage): payload for payload in found}
    order = {stage_run_id: n for n, stage_run_id in enumerate(attempts)}
    runs.sort(key=lambda run: order[run.id])
    return Claimed(runs, jobs, payloads)


def _payload(row: _AnyRow) -> ObjectRef | bytes | None:
    if row.payload_ref is None:
        found: bytes | None = row.payload_inline
        return found
    return ObjectRef.model_validate_json(row.payload_ref)


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
