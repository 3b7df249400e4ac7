"""Submit: jobs and their stage runs, written at once and once."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Connection, Integer, Text, and_, bindparam, false, literal_column, select

from omni_jobs.database.batch import Batch, listed, one_of
from omni_jobs.database.clock import now
from omni_jobs.database.statement import Statement, execute_pipelined
from omni_jobs.database.tables import JobRow, Seconds, StageRunRow, encode_json, literal, state_seen
from omni_jobs.errors import Conflict
from omni_jobs.jobs.values import Hint, NewJob, NewStage, SubmitResult
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView

__all__ = ["Draft", "as_written", "draft", "new_job_id", "submit"]

_NOW = Statement(select(now()))
_INSERT_JOBS = Batch.insert(
    JobRow,
    {
        "id": Text,
        "pipeline": Text,
        "pipeline_version": Text,
        "pipeline_digest": Text,
        "modalities": Text,
        "request": Text,
        "request_digest": Text,
        "idempotency_key": Text,
        "media": Text,
        "metadata": Text,
        "seed": BigInteger,
        "tenant": Text,
        "deadline": Seconds,
        "created_at": Seconds,
    },
    alike={
        "state": literal(JobState.QUEUED),
        "retries": literal_column("0"),
        "payloads_gone": false(),
        "inputs_gone": false(),
        "artifacts_gone": false(),
    },
    unless_there=True,
)
_INSERT_STAGE_RUNS = Batch.insert(
    StageRunRow,
    {
        "job_id": Text,
        "position": Integer,
        "pipeline": Text,
        "stage": Text,
        "queue": Text,
        "inputs": Text,
        "capture": Boolean,
        "retries": Text,
        "queue_limit_s": Seconds,
        "state": Text,
        "queued_at": Seconds,
        "due": Seconds,
        "announce_at": Seconds,
        "queue_deadline": Seconds,
    },
    alike={"attempt": literal_column("0"), "payload_gone": false()},
    unless_there=True,
)
_THERE = select(JobRow.id, JobRow.request_digest, JobRow.tenant, JobRow.idempotency_key).where(
    one_of(JobRow.id, bindparam("ids", type_=Text))
    | and_(
        one_of(JobRow.tenant, bindparam("tenants", type_=Text)),
        one_of(JobRow.idempotency_key, bindparam("keys", type_=Text)),
    )
)
_HINT = (StageRunRow.job_id, StageRunRow.id, StageRunRow.attempt, StageRunRow.queue)
_HINTS = select(*_HINT).where(
    one_of(StageRunRow.job_id, bindparam("ids", type_=Text)),
    state_seen(StageRunRow.state, StageRunState.QUEUED),
)


def new_job_id() -> str:
    """``job-`` and a UUIDv7 in hex: ids sort by the time they were made, to a fraction of a millisecond."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # RFC 9562, 6.2, method 3
    value = (millis << 80) | (7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job-{value:032x}"


class Draft(NamedTuple):
    """A job with its idempotency key, and its rows but for the times, which are the database's."""

    job: NewJob
    key: str | None
    row: tuple[Any, ...]  # of ``_INSERT_JOBS``
    stage_runs: Sequence[tuple[tuple[Any, ...], bool, float | None]]  # of ``_INSERT_STAGE_RUNS``; queued; queue_limit_s


def draft(job: NewJob, key: str | None) -> Draft:
    """To be made before the transaction: SQLite's other writers wait for it."""
    return Draft(job, key, _job(job, key), _stage_runs(job))


def submit(tx: Connection, drafts: Sequence[Draft], *, announce_after_s: float) -> list[SubmitResult | Conflict]:
    """Write jobs unless they are there, each with its idempotency key; answers in the same order.

    A Conflict is the answer to the key of another request; the other jobs are written all the same.
    """
    [[(at,)]] = execute_pipelined(tx, [(_NOW, {})])
    # In the order of their keys: two batches that share some must not wait for each other.
    in_order = sorted(drafts, key=lambda each: (each.job.tenant, each.key or "", each.job.job_id))
    written = _INSERT_JOBS.run(tx, [(*each.row, _deadline(each.job, at), at) for each in in_order])
    if written == len(drafts):
        answers: dict[str, SubmitResult | Conflict] = {}
        ours = drafts
    else:
        answers = _there_already(tx, drafts)
        ours = [each for each in drafts if each.job.job_id not in answers]
    # All new, or some written by an earlier try of this transaction, whose answer was lost.
    announce = at + announce_after_s
    rows = [
        (*row, at, at, announce, None if limit is None else at + limit) if queued else (*row, None, None, None, None)
        for each in ours
        for row, queued, limit in each.stage_runs
    ]
    hints = _write_stage_runs(tx, rows)
    created_at = at if not answers and written == len(drafts) else None
    for each in ours:
        job_id = each.job.job_id
        answers[job_id] = SubmitResult(
            job_id,
            created=True,
            hints=hints[job_id],
            created_at=created_at,
            job=None if created_at is None else each.job,
        )
    return [answers[each.job.job_id] for each in drafts]


def _there_already(tx: Connection, drafts: Sequence[Draft]) -> dict[str, SubmitResult | Conflict]:
    """The answers to drafts whose key another job has, by the id theirs would have had."""
    ids, keys = [each.job.job_id for each in drafts], [each.key for each in drafts if each.key is not None]
    tenants = {each.job.tenant for each in drafts}
    found = tx.execute(_THERE, {"ids": listed(ids), "tenants": listed(tenants), "keys": listed(keys)}).all()
    there = {row.id for row in found}
    by_key = {(row.tenant, row.idempotency_key): row for row in found if row.idempotency_key is not None}
    answers: dict[str, SubmitResult | Conflict] = {}
    for job, key, *_ in drafts:
        if job.job_id in there:
            continue
        row = by_key[job.tenant, key]
        if row.request_digest == job.request_digest:
            answers[job.job_id] = SubmitResult(row.id, created=False)
        else:
            answers[job.job_id] = Conflict("this idempotency key was used for another request", field="Idempotency-Key")
    return answers


def _write_stage_runs(tx: Connection, rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Hint]]:
    """Hints of those that are queued, by job; also of those that are there already."""
    written: Sequence[tuple[Any, ...]] = ()
    if tx.dialect.name == "postgresql" and rows:
        [written] = execute_pipelined(tx, [_INSERT_STAGE_RUNS.returning(rows, *_HINT, StageRunRow.state)], commit=True)
    else:
        _INSERT_STAGE_RUNS.run(tx, rows)
    hinted: Sequence[Any] = [row[:-1] for row in written if row[-1] == StageRunState.QUEUED]
    if len(written) < len(rows):
        hinted = tx.execute(_HINTS, {"ids": listed({row[0] for row in rows})}).all()
    found: dict[str, list[Hint]] = defaultdict(list)
    # Sorted here: asked for the order, PostgreSQL may walk the whole table in it.
    for job_id, stage_run_id, attempt, queue in sorted(hinted):
        found[job_id].append(Hint(stage_run_id, attempt, queue))
    return found


def as_written(job: NewJob, at: float) -> JobView:
    """What readers see of a job written at ``at`` (unix seconds by the database's clock), until it changes."""
    created_at = datetime.fromtimestamp(at, UTC)
    names = {stage.name for stage in job.stages}
    deadline = _deadline(job, at)
    return JobView(
        id=job.job_id,
        pipeline=job.pipeline,
        pipeline_version=job.pipeline_version,
        status=JobState.QUEUED,
        created_at=created_at,
        started_at=None,
        finished_at=None,
        modalities=list(job.modalities),
        stages=[
            _stage_as_written(stage, created_at if names.isdisjoint(stage.inputs) else None) for stage in job.stages
        ],
        result=None,
        artifacts=[],
        error=None,
        metadata=dict(job.metadata),
        seed=job.seed,
        expires_at=None if deadline is None else datetime.fromtimestamp(deadline, UTC),
        tenant=job.tenant,
    )


def _stage_as_written(stage: NewStage, queued_at: datetime | None) -> StageRunView:
    return StageRunView(
        name=stage.name,
        status=StageRunState.PENDING if queued_at is None else StageRunState.QUEUED,
        attempt=0,
        reason=None,
        queued_at=queued_at,
        started_at=None,
        finished_at=None,
        progress=None,
        payload_bytes=None,
        worker=None,
        errors=[],
    )


def _deadline(job: NewJob, at: float) -> float | None:
    return job.expires_at if job.expires_in_s is None else at + job.expires_in_s


def _job(job: NewJob, idempotency_key: str | None) -> tuple[Any, ...]:
    return (
        job.job_id,
        job.pipeline,
        job.pipeline_version,
        job.pipeline_digest,
        encode_json(list(job.modalities)),
        encode_json(dict(job.request)),
        job.request_digest,
        idempotency_key,
        encode_json([dict(item) for item in job.media]),
        encode_json(dict(job.metadata)),
        job.seed,
        job.tenant,
    )


def _stage_runs(job: NewJob) -> list[tuple[tuple[Any, ...], bool, float | None]]:
    names = {stage.name for stage in job.stages}
    taken = {earlier for stage in job.stages for earlier in stage.inputs}
    rows = []
    for position, stage in enumerate(job.stages):
        inputs = [earlier for earlier in stage.inputs if earlier in names]
        first = not inputs
        limit = stage.queue_limit_s
        retries = stage.retries
        row = (
            job.job_id,
            position,
            job.pipeline,
            stage.name,
            stage.queue,
            encode_json(inputs),
            int(stage.name in taken),
            None if retries == DEFAULT_RETRIES else encode_json(retries.model_dump(exclude_defaults=True)),
            limit,
            (StageRunState.QUEUED if first else StageRunState.PENDING).value,
        )
        rows.append((row, first, limit))
    return rows
