"""Submit: jobs and their stage runs, written at once and once."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from omni_jobs.db import now
from omni_jobs.errors import Conflict
from omni_jobs.jobs.values import Hint, NewJob, Submitted
from omni_jobs.models import JobRow, StageRunRow
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState

__all__ = ["new_job_id", "submit"]

_NOW = select(now())
_INSERT_JOBS_IF_NEW = {
    "sqlite": sqlite.insert(JobRow).on_conflict_do_nothing().returning(JobRow.id),
    "postgresql": postgresql.insert(JobRow).on_conflict_do_nothing().returning(JobRow.id),
}
_INSERT_STAGE_RUNS = insert(StageRunRow).returning(
    StageRunRow.id, StageRunRow.job_id, StageRunRow.attempt, StageRunRow.queue, StageRunRow.state
)
_THERE_ALREADY = select(JobRow.id, JobRow.request_digest, JobRow.idempotency_key).where(
    JobRow.id.in_(bindparam("ids", expanding=True)) | JobRow.idempotency_key.in_(bindparam("keys", expanding=True))
)
_QUEUED_STAGE_RUNS = (
    select(StageRunRow.id, StageRunRow.job_id, StageRunRow.attempt, StageRunRow.queue, StageRunRow.state)
    .where(StageRunRow.job_id.in_(bindparam("ids", expanding=True)))
    .order_by(StageRunRow.id)
)


def new_job_id() -> str:
    """``job-`` and a UUIDv7 in hex: ids sort by the time they were made, to a fraction of a millisecond."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # RFC 9562, 6.2, method 3
    value = (millis << 80) | (7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job-{value:032x}"


def submit(
    tx: Connection, wishes: Sequence[tuple[NewJob, str | None]], *, announce_after_s: float
) -> list[Submitted | Conflict]:
    """Write jobs unless they are there, each with its idempotency key; answers in the same order.

    A Conflict is the answer to the key of another request; the other jobs are written all the same.
    """
    at: float = tx.execute(_NOW).scalar_one()
    # In the order of their keys: two batches that share some must not wait for each other.
    rows = [_job(job, key, at) for job, key in sorted(wishes, key=lambda wish: (wish[1] or "", wish[0].job_id))]
    created = set(tx.execute(_INSERT_JOBS_IF_NEW[tx.dialect.name], rows).scalars())
    stage_runs = [row for job, _ in wishes if job.job_id in created for row in _stage_runs(job, at, announce_after_s)]
    hints = _hints(tx.execute(_INSERT_STAGE_RUNS, stage_runs)) if stage_runs else {}
    there = _there_already(tx, [(job, key) for job, key in wishes if job.job_id not in created])
    return [
        Submitted(job.job_id, created=True, hints=hints[job.job_id]) if job.job_id in created else there[job.job_id]
        for job, _ in wishes
    ]


def _there_already(tx: Connection, wishes: Sequence[tuple[NewJob, str | None]]) -> dict[str, Submitted | Conflict]:
    """The answers to wishes that made no job, by the id it would have had."""
    if not wishes:
        return {}
    keys = [key for _, key in wishes if key is not None]
    found = tx.execute(_THERE_ALREADY, {"ids": [job.job_id for job, _ in wishes], "keys": keys}).all()
    by_key = {row.idempotency_key: row for row in found if row.idempotency_key is not None}
    by_id = {row.id: row for row in found}
    # Written by an earlier try of this transaction, whose answer was lost.
    ours = [job.job_id for job, _ in wishes if job.job_id in by_id]
    hints = _hints(tx.execute(_QUEUED_STAGE_RUNS, {"ids": ours})) if ours else {}
    answers: dict[str, Submitted | Conflict] = {}
    for job, key in wishes:
        row = by_id.get(job.job_id) or by_key[key]
        if row.request_digest != job.request_digest:
            answers[job.job_id] = Conflict("this idempotency key was used for another request", field="Idempotency-Key")
        elif row.id == job.job_id:
            answers[job.job_id] = Submitted(row.id, created=True, hints=hints.get(row.id, []))
        else:
            answers[job.job_id] = Submitted(row.id, created=False)
    return answers


def _hints(stage_runs: Iterable[Row[Any]]) -> dict[str, list[Hint]]:
    """Of those that are queued, by job."""
    found: dict[str, list[Hint]] = defaultdict(list)
    for row in sorted(stage_runs, key=attrgetter("id")):
        if row.state == StageRunState.QUEUED.value:
            found[row.job_id].append(Hint(row.id, row.attempt, row.queue))
    return found


def _job(job: NewJob, idempotency_key: str | None, at: float) -> dict[str, Any]:
    return {
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
