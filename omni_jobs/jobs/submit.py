"""Submit: write jobs and their stage runs together, and each job once however often it is submitted."""

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Connection, Integer, Text, and_, bindparam, false, literal_column, select

from omni_jobs.database.bulk_statement import BulkStatement, listed, one_of
from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.statement import Statement, execute_pipelined
from omni_jobs.database.tables import JobRow, Seconds, StageRunRow, encode_json, literal, state_seen
from omni_jobs.errors import Conflict, DatabaseUnavailable, OmniJobsError
from omni_jobs.jobs.values import Hint, NewJob, NewStage, SubmitResult
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView

_NOW = Statement(select(now()))
_INSERT_JOBS = BulkStatement.insert(
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
_INSERT_STAGE_RUNS = BulkStatement.insert(
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
_KNOWN_JOBS = select(JobRow.id, JobRow.request_digest, JobRow.tenant, JobRow.idempotency_key).where(
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
    """Return a new job id: ``job-`` and a UUIDv7 in hex. Ids sort by the time they were made, to a quarter of a µs."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # RFC 9562, 6.2, method 3
    value = (millis << 80) | (7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job-{value:032x}"


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """What ``prepare`` makes for ``submit``: a job and its rows, without times, which the database gives."""

    job: NewJob
    values: tuple[Any, ...]  # the columns of _INSERT_JOBS up to "tenant"
    stage_runs: Sequence[tuple[Any, ...]]  # the columns of _INSERT_STAGE_RUNS up to "state"


def prepare(job: NewJob) -> PreparedJob:
    """Encode the rows of a job for ``submit``, and return them.

    Call it before the transaction, because SQLite's other writers wait while a transaction is open.
    """
    return PreparedJob(job, _job_values(job), _stage_run_values(job))


def submit(tx: Connection, jobs: Sequence[PreparedJob], announce_after_s: float) -> list[SubmitResult | OmniJobsError]:
    """Write the prepared jobs that are not there yet, and return the results in the order of ``jobs``.

    Where the tenant has used a job's key before, the result is that job, with ``created`` False, or an error: Conflict
    if it was for another request, DatabaseUnavailable if it was deleted just now. The other jobs are written all the
    same. Run nothing in the transaction afterwards, because on PostgreSQL this may commit it.
    """
    [[(at,)]] = execute_pipelined(tx, [(_NOW, {})])
    # In the order of their keys, so that two transactions that share some do not wait for each other.
    in_order = sorted(jobs, key=lambda each: (each.job.tenant, each.job.idempotency_key or "", each.job.job_id))
    written = _INSERT_JOBS.run(tx, [(*each.values, _deadline(each.job, at), at) for each in in_order])
    are_new = written == len(jobs)
    results: dict[str, SubmitResult | OmniJobsError] = {} if are_new else _results_of_known_keys(tx, jobs)
    # The jobs that are left are new, or written by an earlier try of this transaction whose answer was lost.
    ours = [each for each in jobs if each.job.job_id not in results]
    rows = [_timed(stage_run, at, at + announce_after_s) for each in ours for stage_run in each.stage_runs]
    hints = _write_stage_runs(tx, rows)
    for each in ours:
        job_id = each.job.job_id
        created_at, written_job = (at, each.job) if are_new else (None, None)
        results[job_id] = SubmitResult(job_id, True, hints[job_id], created_at, written_job)
    return [results[each.job.job_id] for each in jobs]


def _timed(stage_run: tuple[Any, ...], at: float, announce_at: float) -> tuple[Any, ...]:
    """Return the whole row of a stage run written at ``at``, with queued_at, due, announce_at and queue_deadline."""
    *_, queue_limit_s, state = stage_run
    if state == StageRunState.PENDING:
        return (*stage_run, None, None, None, None)
    return (*stage_run, at, at, announce_at, None if queue_limit_s is None else at + queue_limit_s)


def _results_of_known_keys(tx: Connection, jobs: Sequence[PreparedJob]) -> dict[str, SubmitResult | OmniJobsError]:
    """Return the results of the jobs whose key another job has, by the id that they would have had.

    It is DatabaseUnavailable if the other job has been deleted since, because a second submit would write this one.
    """
    ids = [each.job.job_id for each in jobs]
    keys = [each.job.idempotency_key for each in jobs if each.job.idempotency_key is not None]
    tenants = {each.job.tenant for each in jobs}
    known = tx.execute(_KNOWN_JOBS, {"ids": listed(ids), "tenants": listed(tenants), "keys": listed(keys)}).all()
    known_ids = {row.id for row in known}
    by_key = {(row.tenant, row.idempotency_key): row for row in known if row.idempotency_key is not None}
    results: dict[str, SubmitResult | OmniJobsError] = {}
    for each in jobs:
        job = each.job
        if job.job_id in known_ids:
            continue
        row = by_key.get((job.tenant, job.idempotency_key))
        if row is None:
            text = "the job of this idempotency key was deleted while the key was used again"
            results[job.job_id] = DatabaseUnavailable(text)
        elif row.request_digest == job.request_digest:
            results[job.job_id] = SubmitResult(row.id, created=False)
        else:
            results[job.job_id] = Conflict("this idempotency key was used for another request", field="Idempotency-Key")
    return results


def _write_stage_runs(tx: Connection, rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Hint]]:
    """Write the stage runs that are not there yet, and return the hints of the queued ones by job id."""
    written: Sequence[tuple[Any, ...]] = ()
    if tx.dialect.name == "postgresql" and rows:
        [written] = execute_pipelined(tx, [_INSERT_STAGE_RUNS.returning(rows, *_HINT, StageRunRow.state)], commit=True)
    else:
        _INSERT_STAGE_RUNS.run(tx, rows)
    queued: Sequence[Any] = [row[:-1] for row in written if row[-1] == StageRunState.QUEUED]
    if len(written) < len(rows):
        queued = tx.execute(_HINTS, {"ids": listed({row[0] for row in rows})}).all()
    hints: dict[str, list[Hint]] = defaultdict(list)
    # Sorted here, because for an ORDER BY PostgreSQL may walk the whole table in that order.
    for job_id, stage_run_id, attempt, queue in sorted(queued):
        hints[job_id].append(Hint(stage_run_id, attempt, queue))
    return hints


def as_written(job: NewJob, at: float) -> JobView:
    """Return a job's view as of its submit, without a query, so that the API can answer the submit at once.

    ``at`` is the ``SubmitResult.created_at`` of its submit: seconds since 1970 by the database's clock.
    """
    created_at = as_datetime(at)
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
        stages=[_stage_as_written(each, created_at if names.isdisjoint(each.inputs) else None) for each in job.stages],
        result=None,
        artifacts=[],
        error=None,
        metadata=dict(job.metadata),
        seed=job.seed,
        expires_at=None if deadline is None else as_datetime(deadline),
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
    """Return when a job that is written at ``at`` expires, in seconds since 1970; None: never."""
    return job.expires_at if job.expires_in_s is None else at + job.expires_in_s


def _job_values(job: NewJob) -> tuple[Any, ...]:
    return (
        job.job_id,
        job.pipeline,
        job.pipeline_version,
        job.pipeline_digest,
        encode_json(list(job.modalities)),
        encode_json(dict(job.request)),
        job.request_digest,
        job.idempotency_key,
        encode_json([dict(item) for item in job.media]),
        encode_json(dict(job.metadata)),
        job.seed,
        job.tenant,
    )


def _stage_run_values(job: NewJob) -> list[tuple[Any, ...]]:
    names = {stage.name for stage in job.stages}
    consumed = {earlier for stage in job.stages for earlier in stage.inputs}
    stage_runs = []
    for position, stage in enumerate(job.stages):
        inputs = [earlier for earlier in stage.inputs if earlier in names]
        stage_run = (
            job.job_id,
            position,
            job.pipeline,
            stage.name,
            stage.queue,
            encode_json(inputs),
            int(stage.name in consumed),
            None if stage.retries == DEFAULT_RETRIES else encode_json(stage.retries.model_dump(exclude_defaults=True)),
            stage.queue_limit_s,
            (StageRunState.PENDING if inputs else StageRunState.QUEUED).value,
        )
        stage_runs.append(stage_run)
    return stage_runs
