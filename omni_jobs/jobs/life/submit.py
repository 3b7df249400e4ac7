"""Submit: write jobs and their stage runs together, and each job once however often it is submitted."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Text, and_, bindparam, select

from omni_jobs.database.clock import as_datetime
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import Statements, listed
from omni_jobs.database.tables import JobRow, encode_json, label_of
from omni_jobs.errors import DatabaseUnavailable, IdempotencyKeyReused, OmniJobsError, Unauthenticated
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.jobs.life.successors import QUOTA
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.order.take_turns import take_turns
from omni_jobs.jobs.order.virtual_times import Wish
from omni_jobs.jobs.values import SubmitResult
from omni_jobs.new_job import NewJob, NewStage
from omni_jobs.priority import Priority, queue_of
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView

_sql = Statements(__file__)
_INSERT_JOBS = _sql.bulk(
    "insert_jobs_unless_there",
    "id pipeline pipeline_version pipeline_digest modalities request request_digest idempotency_key media "
    "metadata seed tenant priority cost deadline created_at",
)
_INSERT_KEEPING_JOBS = _sql.bulk("insert_keeping_jobs_unless_there", "job_id")
_INSERT_TRACED_JOBS = _sql.bulk("insert_traced_jobs_unless_there", "job_id traceparent")
_INSERT_STAGE_RUNS = _sql.bulk(
    "insert_stage_runs_unless_there",
    "job_id position pipeline pipeline_digest stage queue inputs has_successors retries is_high queue_limit_s "
    "state turn queued_at due queue_deadline reason",
)
_INSERT_LABELS = _sql.bulk("insert_labels_unless_there", "label tenant job_id")
_has_key = and_(
    one_of(JobRow.tenant.concat(""), bindparam("tenants", type_=Text)),  # the key's index serves it, no tenant's
    one_of(JobRow.idempotency_key, bindparam("keys", type_=Text)),
)
_KNOWN_JOBS = select(JobRow.id, JobRow.request_digest, JobRow.tenant, JobRow.idempotency_key, JobRow.created_at).where(
    one_of(JobRow.id, bindparam("ids", type_=Text)) | _has_key
)
_KNOWN_KEYS = select(JobRow.tenant, JobRow.idempotency_key).where(_has_key)


@dataclass(frozen=True, slots=True)
class JobRows:
    """A job as its rows, all but turns and times, which the database gives."""

    job: NewJob
    values: tuple[Any, ...]  # the columns of _INSERT_JOBS up to "cost"
    stage_runs: Sequence[tuple[Any, ...]]  # the columns of _INSERT_STAGE_RUNS up to "state"
    labels: Sequence[tuple[str, str, str]]  # the columns of _INSERT_LABELS
    wish: Wish
    stored_bytes: int  # omni_jobs.jobs.keep.stored_bytes


def rows_of(job: NewJob) -> JobRows:
    """Return the rows of a job, encoded.

    Call it before the transaction, because SQLite's other writers wait while a transaction is open.
    """
    request, metadata = encode_json(dict(job.request)), encode_json(dict(job.metadata))
    values = (
        job.job_id,
        job.pipeline.name,
        job.pipeline_version,
        job.pipeline.digest,
        encode_json(list(job.modalities)),
        request,
        job.request_digest,
        job.idempotency_key,
        encode_json([dict(item) for item in job.media]),
        metadata,
        job.seed,
        job.tenant,
        job.priority.value,
        job.cost,
    )
    stages = tuple(stage.name for stage in job.stages)
    labels = [(label_of(name, value), job.tenant, job.job_id) for name, value in job.metadata.items()]
    wish = Wish(job.pipeline, job.tenant, job.priority, stages, job.cost)
    media = 0 if job.reuse is not None else stored_bytes.of_media(job.media)
    stored = len(request) + len(metadata) + media + stored_bytes.of_empty_job(len(stages), len(labels))
    return JobRows(job, values, _stage_run_values(job), labels, wish, stored)


def submit(
    tx: Connection, jobs: Sequence[JobRows], only_known_tenants: bool = False
) -> list[SubmitResult | OmniJobsError]:
    """Write the jobs that are not there yet, and return the results in the order of ``jobs``.

    Where the tenant has used a job's key before, the result is that job, with ``created`` False, or an error:
    IdempotencyKeyReused if it was for another request, DatabaseUnavailable if it was deleted just now. The other jobs
    are written all the same. A job of a tenant with the limit ``running_jobs`` is held, unless it is let in at once;
    its result names the queues of all jobs that were let in meanwhile, and has no ``created_at``. With
    ``only_known_tenants`` the result for a tenant that has no row is Unauthenticated.
    """
    given, at, limited, unknown = take_turns(tx, [each.wish for each in jobs])
    turns = dict(zip((each.job.job_id for each in jobs), given, strict=True))
    refused = unknown if only_known_tenants else ()
    results: dict[str, SubmitResult | OmniJobsError] = {
        each.job.job_id: Unauthenticated() for each in jobs if each.job.tenant in refused
    }
    wanted = [each for each in jobs if each.job.job_id not in results]
    results |= _write(tx, wanted, turns, at, limited)
    return [results[each.job.job_id] for each in jobs]


def _write(
    tx: Connection, jobs: Sequence[JobRows], turns: Mapping[str, int], at: float, limited: Collection[str]
) -> dict[str, SubmitResult | OmniJobsError]:
    """Write these jobs with their turns (by job id), and return their results by job id."""
    # In the order of their keys, so that two transactions that share some do not wait for each other.
    in_order = sorted(jobs, key=lambda each: (each.job.tenant, each.job.idempotency_key or "", each.job.job_id))
    written = _INSERT_JOBS.run(tx, [(*each.values, _deadline(each.job, at), at) for each in in_order])
    are_new = written == len(jobs)
    known = [] if are_new else _known_jobs(tx, jobs)
    results = {} if are_new else _results_of_known_keys(jobs, known)
    # The jobs that are left are new, or written by an earlier try of this transaction whose answer was lost.
    ours = [each for each in jobs if each.job.job_id not in results]
    rows = [
        _whole(run, turns[each.job.job_id], at, each.job.tenant in limited) for each in ours for run in each.stage_runs
    ]
    inserted = _INSERT_STAGE_RUNS.run(tx, rows)
    _INSERT_LABELS.run(tx, [label for each in ours for label in each.labels])
    _INSERT_KEEPING_JOBS.run(tx, [(each.job.job_id,) for each in ours if each.job.keeps_payloads])
    traced = [(each.job.job_id, each.job.traceparent) for each in ours if each.job.traceparent is not None]
    _INSERT_TRACED_JOBS.run(tx, traced)
    queues = quota.enter(tx, {each.job.job_id: each.wish for each in ours if each.job.tenant in limited})
    for each in ours:
        job = each.job
        if job.tenant in limited:
            result = SubmitResult(job.job_id, True, queues, traceparent=job.traceparent)
        elif are_new:
            result = SubmitResult(job.job_id, True, _first_queues(job), at, job, job.traceparent)
        else:
            result = SubmitResult(job.job_id, True, _first_queues(job), traceparent=job.traceparent)
        results[job.job_id] = result
    if inserted:  # else an earlier try has written and counted them all
        by_earlier_try = set() if inserted == len(rows) else {row.id for row in known if row.created_at != at}
        stored: Counter[str] = Counter()
        for each in ours:
            if each.job.job_id not in by_earlier_try:
                stored[each.job.tenant] += each.stored_bytes
        stored_bytes.add(tx, stored)
    return results


def known_keys(tx: Connection, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of these tenants' idempotency keys (tenant, key) with which a job that exists was submitted."""
    lists = {"tenants": listed({tenant for tenant, _ in keys}), "keys": listed({key for _, key in keys})}
    rows: set[tuple[Any, ...]] = set(tx.execute(_KNOWN_KEYS, lists))
    return rows.intersection(keys)


def known_submits(tx: Connection, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the job id and the request's digest of each of these tenants' keys (tenant, key) that names a job."""
    lists = {"tenants": listed({tenant for tenant, _ in keys}), "keys": listed({key for _, key in keys})}
    rows = tx.execute(_KNOWN_JOBS, {"ids": listed(()), **lists})
    found = {(row.tenant, row.idempotency_key): (row.id, row.request_digest) for row in rows}
    return {key: found[key] for key in keys if key in found}


def _whole(stage_run: tuple[Any, ...], turn: int, at: float, is_held: bool) -> tuple[Any, ...]:
    """Return the whole row of a stage run written at ``at``, with turn, times and reason; ``is_held``: its job."""
    *others, queue_limit_s, state = stage_run
    if state == StageRunState.PENDING:
        return (*stage_run, turn, None, None, None, None)
    if is_held:
        return (*others, queue_limit_s, StageRunState.PENDING.value, turn, None, None, None, QUOTA)
    return (*stage_run, turn, at, at, None if queue_limit_s is None else at + queue_limit_s, None)


def _first_queues(job: NewJob) -> set[str]:
    """Return the queues of the stages that the job begins with."""
    return {queue_of(stage.queue, job.priority) for stage in job.stages if _is_first(job, stage)}


def _is_first(job: NewJob, stage: NewStage) -> bool:
    """Return whether the job begins with this stage: it takes no other stage's payload but those of reused ones."""
    reused = frozenset[str]() if job.reuse is None else job.reuse.stages
    return stage.name not in reused and reused.issuperset(_inputs(job, stage))


def _inputs(job: NewJob, stage: NewStage) -> list[str]:
    """Return those of a stage's inputs that are stages of the job."""
    names = {each.name for each in job.stages}
    return [earlier for earlier in stage.inputs if earlier in names]


def _known_jobs(tx: Connection, jobs: Sequence[JobRows]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the jobs that have the ids or the keys of these."""
    ids = [each.job.job_id for each in jobs]
    keys = [each.job.idempotency_key for each in jobs if each.job.idempotency_key is not None]
    tenants = {each.job.tenant for each in jobs}
    return tx.execute(_KNOWN_JOBS, {"ids": listed(ids), "tenants": listed(tenants), "keys": listed(keys)}).all()


def _results_of_known_keys(
    jobs: Sequence[JobRows], known: Sequence[Row[*tuple[Any, ...]]]
) -> dict[str, SubmitResult | OmniJobsError]:
    """Return the results of the jobs whose key another job has, by the id that they would have had.

    It is DatabaseUnavailable if the other job has been deleted since, because a second submit would write this one.
    """
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
            results[job.job_id] = IdempotencyKeyReused(field="Idempotency-Key")
    return results


def as_written(job: NewJob, at: float) -> JobView:
    """Return a job's view as of its submit, without a query, so that the API can answer the submit at once.

    ``at`` is the ``SubmitResult.created_at`` of its submit: seconds since 1970 by the database's clock.
    """
    created_at = as_datetime(at)
    deadline = _deadline(job, at)
    return JobView(
        id=job.job_id,
        pipeline=job.pipeline.name,
        pipeline_version=job.pipeline_version,
        status=JobState.QUEUED,
        created_at=created_at,
        started_at=None,
        finished_at=None,
        modalities=list(job.modalities),
        stages=[_stage_as_written(stage, None if _inputs(job, stage) else created_at) for stage in job.stages],
        result=None,
        artifacts=[],
        error=None,
        metadata=dict(job.metadata),
        seed=job.seed,
        expires_at=None if deadline is None else as_datetime(deadline),
        tenant=job.tenant,
        priority=job.priority,
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


def _stage_run_values(job: NewJob) -> list[tuple[Any, ...]]:
    consumed = {earlier for stage in job.stages for earlier in stage.inputs}
    stage_runs = []
    for position, stage in enumerate(job.stages):
        inputs = _inputs(job, stage)
        stage_run = (
            job.job_id,
            position,
            *job.pipeline,
            stage.name,
            queue_of(stage.queue, job.priority),
            encode_json(inputs),
            int(stage.name in consumed),
            None if stage.retries == DEFAULT_RETRIES else encode_json(stage.retries.model_dump(exclude_defaults=True)),
            int(job.priority is Priority.HIGH),
            stage.queue_limit_s,
            (StageRunState.QUEUED if _is_first(job, stage) else StageRunState.PENDING).value,
        )
        stage_runs.append(stage_run)
    return stage_runs
