"""Submit: a job and its stage runs, written at once and once."""

from __future__ import annotations

import secrets
import time
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from omni_jobs.db import now
from omni_jobs.errors import Conflict
from omni_jobs.jobs.values import Hint, NewJob, Submitted
from omni_jobs.models import JobRow, StageRunRow, state_seen
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState

__all__ = ["new_job_id", "submit"]

_NOW = select(now())
_INSERT_JOB_IF_NEW = {
    "sqlite": sqlite.insert(JobRow).on_conflict_do_nothing().returning(JobRow.id),
    "postgresql": postgresql.insert(JobRow).on_conflict_do_nothing().returning(JobRow.id),
}
_INSERT_STAGE_RUNS = insert(StageRunRow)
_QUEUED_STAGE_RUNS = (
    select(StageRunRow.id, StageRunRow.attempt, StageRunRow.queue)
    .where(StageRunRow.job_id == bindparam("job"), state_seen(StageRunRow.state, StageRunState.QUEUED))
    .order_by(StageRunRow.id)
)


def new_job_id() -> str:
    """``job-`` and a UUIDv7 in hex: ids sort by the time they were made, to a fraction of a millisecond."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # RFC 9562, 6.2, method 3
    value = (millis << 80) | (7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job-{value:032x}"


def submit(tx: Connection, job: NewJob, idempotency_key: str | None, *, announce_after_s: float) -> Submitted:
    """Write the job unless it is there. Raises Conflict for the key of another request."""
    at: float = tx.execute(_NOW).scalar_one()
    if not _insert_if_new(tx, job, idempotency_key, at):
        found = tx.execute(
            select(JobRow.id, JobRow.request_digest).where(
                (JobRow.id == job.job_id) | (JobRow.idempotency_key == idempotency_key)
                if idempotency_key is not None
                else JobRow.id == job.job_id
            )
        ).one()
        if found.request_digest != job.request_digest:
            raise Conflict("this idempotency key was used for another request", field="Idempotency-Key")
        if found.id != job.job_id:
            return Submitted(found.id, created=False)
        # Written by an earlier try of this transaction, whose answer was lost.
        return Submitted(job.job_id, created=True, hints=_queued(tx, job.job_id))
    tx.execute(_INSERT_STAGE_RUNS, _stage_runs(job, at, announce_after_s))
    return Submitted(job.job_id, created=True, hints=_queued(tx, job.job_id))


def _insert_if_new(tx: Connection, job: NewJob, idempotency_key: str | None, at: float) -> bool:
    row = {
        "id": job.job_id,
        "state": JobState.QUEUED.value,
        "pipeline": job.pipeline,
        "pipeline_version": job.pipeline_version,
        "pipeline_digest": job.pipeline_digest,
        "modalities": list(job.modalities),
        "request": dict(job.request),
        "request_digest": job.request_digest,
        "idempotency_key": idempotency_key,
        "media": [dict(item) for item in job.media],
        "metadata": dict(job.metadata),
        "seed": job.seed,
        "tenant": job.tenant,
        "deadline": job.expires_at if job.expires_in_s is None else at + job.expires_in_s,
        "created_at": at,
    }
    return tx.execute(_INSERT_JOB_IF_NEW[tx.dialect.name], row).first() is not None


def _stage_runs(job: NewJob, at: float, announce_after_s: float) -> list[dict[str, Any]]:
    names = {stage.name for stage in job.stages}
    taken = {earlier for stage in job.stages for earlier in stage.inputs}
    rows = []
    for position, stage in enumerate(job.stages):
        inputs = [earlier for earlier in stage.inputs if earlier in names]
        first = not inputs
        rows.append(
            {
                "job_id": job.job_id,
                "position": position,
                "pipeline": job.pipeline,
                "stage": stage.name,
                "queue": stage.queue,
                "inputs": inputs,
                "capture": stage.name in taken,
                "retries": None
                if stage.retries == DEFAULT_RETRIES
                else stage.retries.model_dump(exclude_defaults=True),
                "queue_limit_s": stage.queue_limit_s,
                "state": (StageRunState.QUEUED if first else StageRunState.PENDING).value,
                "queued_at": at if first else None,
                "due": at if first else None,
                "announce_at": at + announce_after_s if first else None,
                "queue_deadline": at + stage.queue_limit_s if first and stage.queue_limit_s is not None else None,
            }
        )
    return rows


def _queued(tx: Connection, job_id: str) -> list[Hint]:
    return [Hint(row.id, row.attempt, row.queue) for row in tx.execute(_QUEUED_STAGE_RUNS, {"job": job_id})]
