"""Claim: give queued stage runs to a worker, many in one transaction, each only if it is as its hint says."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, func, literal_column, null, select, type_coerce, update

from omni_jobs.database.bulk_statement import among, listed, one_of
from omni_jobs.database.clock import now
from omni_jobs.database.statement import Statement, execute_pipelined
from omni_jobs.database.tables import JobRow, StageRunRow, WorkerRow, decode_json, literal, state_seen
from omni_jobs.errors import Fenced
from omni_jobs.jobs.successors import retry_limits, stage_names
from omni_jobs.jobs.values import Claim
from omni_jobs.retry import is_last_chance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef

_worker = bindparam("worker", type_=Text)
_ids = bindparam("ids", type_=Text)
_HAS_LEASE = select(WorkerRow.id).where(WorkerRow.id == _worker, WorkerRow.lease_until > now()).exists()
_LEASE = Statement(select(_HAS_LEASE))

# The first claim of a job changes its row, and job rows are locked before stage runs (docs/states.md).
_UNSTARTED_JOBS = (
    select(JobRow.id)
    .where(
        state_seen(JobRow.state, JobState.QUEUED),
        among(JobRow.id, select(StageRunRow.job_id).where(one_of(StageRunRow.id, _ids))),
    )
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
_LOCK_UNSTARTED_JOBS = Statement(select(func.count()).select_from(_UNSTARTED_JOBS.subquery()))

# Two lookups by primary keys, the second once: a join PostgreSQL might turn into a walk through all jobs.
_HAS_FILE = (
    select(JobRow.pipeline_digest)
    .where(JobRow.id == StageRunRow.job_id)
    .correlate(StageRunRow)
    .scalar_subquery()
    .in_([literal_column("''"), select(WorkerRow.pipeline_digest).where(WorkerRow.id == _worker).scalar_subquery()])
)
_HINT = cast(StageRunRow.id, Text).concat(literal_column("':'")).concat(cast(StageRunRow.attempt, Text))
_CLAIMABLE = (
    select(StageRunRow.id)
    .where(
        one_of(StageRunRow.id, _ids),
        one_of(_HINT, bindparam("hints", type_=Text)),
        state_seen(StageRunRow.state, StageRunState.QUEUED),
        StageRunRow.due <= now(),
        _HAS_LEASE,
        _HAS_FILE,
    )
    .order_by(StageRunRow.id)
    .with_for_update(skip_locked=True, of=StageRunRow)
    .correlate(None)
)
_CLAIM_IF_QUEUED = Statement(
    update(StageRunRow)
    .where(StageRunRow.id.in_(_CLAIMABLE))
    .values(
        state=literal(StageRunState.RUNNING),
        attempt=StageRunRow.attempt + literal_column("1"),
        owner=_worker,
        started_at=now(),
        reason=null(),
        progress=null(),
    )
    .returning(StageRunRow.id)
)

# Of these stage runs those that the worker runs: just claimed, or by an earlier call whose answer was lost.
_IS_HELD = (
    one_of(StageRunRow.id, _ids),
    state_seen(StageRunRow.state, StageRunState.RUNNING),
    StageRunRow.owner == _worker,
)
_HELD_JOBS = select(StageRunRow.job_id).where(*_IS_HELD).correlate(None)
_START_IF_QUEUED = Statement(
    update(JobRow)
    .where(among(JobRow.id, _HELD_JOBS), state_seen(JobRow.state, JobState.QUEUED))
    .values(
        state=literal(JobState.IN_PROGRESS),
        started_at=select(func.max(StageRunRow.started_at)).where(StageRunRow.job_id == JobRow.id).scalar_subquery(),
    )
    .returning(JobRow.id)
)
# JSON is read as text, because most of it is alike from row to row.
_STAGE_RUNS = Statement(
    select(
        StageRunRow.id,
        StageRunRow.job_id,
        StageRunRow.stage,
        StageRunRow.attempt,
        type_coerce(StageRunRow.inputs, Text),
        StageRunRow.has_successors,
        type_coerce(StageRunRow.retries, Text),
        type_coerce(StageRunRow.failures, Text),
    ).where(*_IS_HELD)
)
_JOBS = Statement(
    select(
        JobRow.id, JobRow.pipeline, type_coerce(JobRow.request, Text), type_coerce(JobRow.media, Text), JobRow.seed
    ).where(among(JobRow.id, _HELD_JOBS))
)
_PAYLOADS = Statement(
    select(
        StageRunRow.job_id, StageRunRow.stage, type_coerce(StageRunRow.payload_ref, Text), StageRunRow.payload_inline
    ).where(
        among(StageRunRow.job_id, _HELD_JOBS.where(type_coerce(StageRunRow.inputs, Text) != literal_column("'[]'"))),
        state_seen(StageRunRow.state, StageRunState.SUCCEEDED),
    )
)


def claim(tx: Connection, worker_id: str, hints: Iterable[tuple[int, int]]) -> list[Claim]:
    """Claim for a worker the stage runs of hints ``(stage_run_id, attempt)``; return the claims in the hints' order.

    :meth:`omni_jobs.jobs.Jobs.claim` says which hints give no claim. Run nothing in the transaction afterwards,
    because on PostgreSQL this may commit it. Raises Fenced when the worker has no live lease.
    """
    attempts: dict[int, int] = {}
    for stage_run_id, attempt in hints:
        attempts[stage_run_id] = max(attempt, attempts.get(stage_run_id, 0))
    if not attempts:
        return []
    ids = {"ids": listed(attempts)}
    held = ids | {"worker": worker_id}
    as_text = listed(f"{stage_run_id}:{attempt}" for stage_run_id, attempt in attempts.items())
    [[has_lease]], _, _, _, stage_runs, jobs, payloads = execute_pipelined(
        tx,
        [
            (_LEASE, {"worker": worker_id}),  # first: without it the next statement but one claims nothing
            (_LOCK_UNSTARTED_JOBS, ids),
            (_CLAIM_IF_QUEUED, held | {"hints": as_text}),
            (_START_IF_QUEUED, held),
            (_STAGE_RUNS, held),
            (_JOBS, held),
            (_PAYLOADS, held),
        ],
        commit=True,
    )
    if not has_lease:
        raise Fenced(f"worker {worker_id} has no lease")
    job_of_id = {job[0]: job for job in jobs}
    payload_of = {(job_id, stage): _payload(ref, inline) for job_id, stage, ref, inline in payloads}
    claims = [_claim(run, job_of_id[run[1]], payload_of) for run in stage_runs]
    claim_of = {each.stage_run_id: each for each in claims if each.hint in attempts.items()}
    return [claim_of[stage_run_id] for stage_run_id in attempts if stage_run_id in claim_of]


def _claim(
    stage_run: Sequence[Any], job: Sequence[Any], payload_of: dict[tuple[str, str], ObjectRef | bytes | None]
) -> Claim:
    """Make a claim of the columns of ``_STAGE_RUNS`` and ``_JOBS``, and of payloads by job and stage."""
    stage_run_id, job_id, stage, attempt, inputs, has_successors, retries, failed = stage_run
    _, pipeline, request, media, seed = job
    upstream = stage_names(inputs)
    failures = {} if failed is None else decode_json(failed)
    return Claim(
        stage_run_id=stage_run_id,
        job_id=job_id,
        stage=stage,
        attempt=attempt,
        pipeline=pipeline,
        request=decode_json(request),
        media=() if upstream or media == "[]" else decode_json(media),
        seed=seed,
        upstream={earlier: payload_of[job_id, earlier] for earlier in upstream},
        has_successors=bool(has_successors),
        failures=failures,
        alone=bool(failures) and is_last_chance(failures, retry_limits(retries)),
    )


def _payload(ref: str | None, inline: bytes | None) -> ObjectRef | bytes | None:
    return inline if ref is None else ObjectRef.model_validate_json(ref)
