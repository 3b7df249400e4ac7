"""Claim: stage runs become a worker's, by compare-and-set, many at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    bindparam,
    exists,
    func,
    literal_column,
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from omni_jobs.database.batch import among, in_pairs, listed, one_of, paired
from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.database.statement import Call, Statement
from omni_jobs.database.tables import JobRow, StageRunRow, WorkerRow, decode_json, literal, state_seen
from omni_jobs.errors import Fenced
from omni_jobs.jobs.values import Claim
from omni_jobs.retry import RetryLimits, is_last_chance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef

__all__ = ["Claimed", "are_few", "attempts_of", "claim", "claim_few", "claim_many", "few_claimed"]

_HAS_LEASE = exists().where(WorkerRow.id == bindparam("worker"), WorkerRow.lease_until > now())
_ids = bindparam("ids", type_=Text)
# Two lookups by primary keys, the second once: a join PostgreSQL might turn into a walk through all jobs.
_HAS_FILE = (
    select(JobRow.pipeline_digest)
    .where(JobRow.id == StageRunRow.job_id)
    .correlate(StageRunRow)
    .scalar_subquery()
    .in_(
        [
            literal_column("''"),
            select(WorkerRow.pipeline_digest).where(WorkerRow.id == bindparam("worker")).scalar_subquery(),
        ]
    )
)
_IN_PAIRS = in_pairs(StageRunRow.id, StageRunRow.attempt, bindparam("pairs", type_=Text))
# JSON as text: it is read when the transaction has ended.
_OF_JOB = (
    JobRow.id,
    JobRow.pipeline,
    type_coerce(JobRow.request, Text).label("request"),
    type_coerce(JobRow.media, Text).label("media"),
    JobRow.seed,
    JobRow.state,
)
_JOBS_NOBODY_STARTED = (
    select(*_OF_JOB)
    .where(
        state_seen(JobRow.state, JobState.QUEUED),
        JobRow.id.in_(select(StageRunRow.job_id).where(one_of(StageRunRow.id, _ids))),
    )
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
_LOCK_JOBS_NOBODY_STARTED = Statement(_JOBS_NOBODY_STARTED)
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

_ID, _JOB_ID, _INPUTS, _STARTED_AT = 0, 1, 4, 8
_JOB_STATE = 5


def _claim_if_queued(*more: ColumnElement[bool]) -> ReturningUpdate[*tuple[Any, ...]]:
    return (
        update(StageRunRow)
        .where(
            StageRunRow.id.in_(
                select(StageRunRow.id)
                .where(
                    *_IN_PAIRS,
                    state_seen(StageRunRow.state, StageRunState.QUEUED),
                    StageRunRow.due <= now(),
                    _HAS_LEASE,
                    _HAS_FILE,
                    *more,
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


_LEASE = Statement(select(_HAS_LEASE))
_CLAIM_IF_QUEUED = Statement(_claim_if_queued())
_CLAIMED_BEFORE = Statement(
    select(*_OF_STAGE_RUN).where(
        *_IN_PAIRS,
        state_seen(StageRunRow.state, StageRunState.RUNNING),
        StageRunRow.owner == bindparam("worker"),
    )
)
_START_IF_QUEUED = Statement(
    update(JobRow)
    .where(one_of(JobRow.id, _ids), state_seen(JobRow.state, JobState.QUEUED))
    .values(state=literal(JobState.IN_PROGRESS), started_at=bindparam("at"))
)
_JOBS = Statement(select(*_OF_JOB).where(one_of(JobRow.id, _ids)))
_OF_PAYLOAD = (
    StageRunRow.stage,
    type_coerce(StageRunRow.payload_ref, Text).label("payload_ref"),
    StageRunRow.payload_inline,
)
_PAYLOADS = Statement(
    select(StageRunRow.job_id, *_OF_PAYLOAD).where(
        one_of(StageRunRow.job_id, _ids), state_seen(StageRunRow.state, StageRunState.SUCCEEDED)
    )
)
_FEW = 16


@cache
def _at_once() -> Statement:
    """All that a claim does as one statement of PostgreSQL: (stage run, its job, one of the payloads it takes).

    In the order of the locks: the jobs are locked before the stage runs are looked at. What another
    transaction has changed meanwhile PostgreSQL looks at again before it locks it.
    """
    nobody_started = _JOBS_NOBODY_STARTED.with_only_columns(JobRow.id).cte("nobody_started")
    locked_first = select(func.count()).select_from(nobody_started).scalar_subquery() >= literal_column("0")
    claimed = _claim_if_queued(locked_first).cte("claimed")
    started = (
        update(JobRow)
        .where(among(JobRow.id, select(nobody_started.c.id)), JobRow.id.in_(select(claimed.c.job_id)))
        .values(state=literal(JobState.IN_PROGRESS), started_at=now())
        .returning(literal_column("1"))
        .cte("started")
    )
    takers = select(claimed.c.job_id).where(claimed.c.inputs != literal_column("'[]'"))
    payloads = (
        select(StageRunRow.job_id, *_OF_PAYLOAD)
        .where(among(StageRunRow.job_id, takers), state_seen(StageRunRow.state, StageRunState.SUCCEEDED))
        .cte("payloads")
    )
    jobs = select(*_OF_JOB).where(among(JobRow.id, select(claimed.c.job_id))).cte("of_jobs")
    return Statement(
        select(claimed, jobs, payloads.c.stage, payloads.c.payload_ref, payloads.c.payload_inline)
        .select_from(
            claimed.join(jobs, jobs.c.id == claimed.c.job_id).outerjoin(payloads, payloads.c.job_id == claimed.c.job_id)
        )
        .add_cte(started)
    )


_JOB_FROM = len(_OF_STAGE_RUN)  # the columns of a row of ``_at_once``
_PAYLOAD_FROM = _JOB_FROM + len(_OF_JOB)


@dataclass(frozen=True, slots=True)
class Claimed:
    """Rows of stage runs that are the worker's now; read when the transaction has ended."""

    _runs: Sequence[Sequence[Any]] = ()  # the columns _OF_STAGE_RUN, in the order of the hints
    _jobs: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # _OF_JOB
    # By job and stage that made it: reference, or the bytes.
    _payloads: Mapping[tuple[str, str], tuple[str | None, bytes | None]] = field(default_factory=dict)

    def read(self) -> list[Claim]:
        return [self._claim(run) for run in self._runs]

    def missed(self, attempts: Mapping[int, int]) -> dict[int, int]:
        """Those of these stage runs that are not here."""
        found = {run[0] for run in self._runs}
        return {stage_run_id: attempt for stage_run_id, attempt in attempts.items() if stage_run_id not in found}

    def _claim(self, run: Sequence[Any]) -> Claim:
        id_, job_id, stage, attempt, takes, capture, limits, failed, _ = run
        _, pipeline, request, media, seed, _ = self._jobs[job_id]
        inputs = _names(takes)
        failures = {} if failed is None else json.loads(failed)
        return Claim(
            stage_run_id=id_,
            job_id=job_id,
            stage=stage,
            attempt=attempt,
            pipeline=pipeline,
            request=decode_json(request),
            media=() if inputs or media == "[]" else json.loads(media),
            seed=seed,
            upstream={earlier: _payload(*self._payloads[job_id, earlier]) for earlier in inputs},
            capture=bool(capture),
            failures=failures,
            alone=bool(failures) and is_last_chance(failures, RetryLimits(**json.loads(limits or "{}"))),
        )


def attempts_of(hints: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Each stage run once."""
    attempts: dict[int, int] = {}
    for stage_run_id, attempt in hints:
        attempts[stage_run_id] = max(attempt, attempts.get(stage_run_id, 0))
    return attempts


def are_few(attempts: Mapping[int, int], dialect: str) -> bool:
    """Whether one statement claims them best: with PostgreSQL a round trip costs more than a claim."""
    return dialect == "postgresql" and 0 < len(attempts) <= _FEW


def claim(db: Database, worker_id: str, attempts: Mapping[int, int]) -> list[Claim]:
    """Claim what can be claimed; see :meth:`omni_jobs.jobs.Jobs.claim`."""
    found: list[Claim] = []
    if are_few(attempts, db.dialect):
        statement, parameters = claim_few(worker_id, attempts)
        rows = db.run_pipelined(partial(statement.rows, parameters=parameters))
        claimed = few_claimed(rows, attempts)
        found, attempts = claimed.read(), claimed.missed(attempts)
    return found + db.run(partial(claim_many, worker_id=worker_id, attempts=attempts)).read() if attempts else found


def claim_few(worker_id: str, attempts: Mapping[int, int]) -> Call:
    """The statement; ``few_claimed`` reads its rows.

    Of what that does not give, ``claim_many`` tells a hint that was stale from a lost lease, and from
    a claim whose answer was lost.
    """
    return _at_once(), {"ids": listed(attempts), "pairs": paired(attempts), "worker": worker_id}


def few_claimed(rows: Iterable[Sequence[Any]], attempts: Mapping[int, int]) -> Claimed:
    """In the order of the attempts."""
    runs, jobs, payloads = {}, {}, {}
    for row in rows:
        run, job, (stage, ref, inline) = row[:_JOB_FROM], row[_JOB_FROM:_PAYLOAD_FROM], row[_PAYLOAD_FROM:]
        runs[run[0]], jobs[job[0]], payloads[job[0], stage] = run, job, (ref, inline)
    return Claimed([runs[stage_run_id] for stage_run_id in attempts if stage_run_id in runs], jobs, payloads)


def claim_many(tx: Connection, worker_id: str, attempts: Mapping[int, int]) -> Claimed:
    """As a part of a transaction, in some statements, however many there are."""
    if not attempts:
        return Claimed()
    jobs: dict[str, Sequence[Any]] = {}
    if tx.dialect.name == "postgresql":  # SQLite's writers have all of it locked
        jobs = {job[0]: job for job in _LOCK_JOBS_NOBODY_STARTED.rows(tx, {"ids": listed(attempts)})}
    runs = _CLAIM_IF_QUEUED.rows(tx, {"pairs": paired(attempts), "worker": worker_id})
    if len(runs) < len(attempts):
        [[has_lease]] = _LEASE.rows(tx, {"worker": worker_id})
        if not has_lease:
            raise Fenced(f"worker {worker_id} has no lease")
        missed = attempts.keys() - {run[_ID] for run in runs}
        claimed = {stage_run_id: attempts[stage_run_id] + 1 for stage_run_id in missed}
        runs += _CLAIMED_BEFORE.rows(tx, {"pairs": paired(claimed), "worker": worker_id})
    if not runs:
        return Claimed()
    of_jobs = {run[_JOB_ID] for run in runs}
    if others := of_jobs - jobs.keys():
        jobs.update((job[0], job) for job in _JOBS.rows(tx, {"ids": listed(sorted(others))}))
    if started := sorted(job_id for job_id in of_jobs if jobs[job_id][_JOB_STATE] == JobState.QUEUED):
        _START_IF_QUEUED.run(tx, {"ids": listed(started), "at": runs[0][_STARTED_AT]})
    payloads: dict[tuple[str, str], tuple[str | None, bytes | None]] = {}
    if takers := {run[_JOB_ID] for run in runs if _names(run[_INPUTS])}:
        for job_id, stage, ref, inline in _PAYLOADS.rows(tx, {"ids": listed(takers)}):
            payloads[job_id, stage] = (ref, inline)
    order = {stage_run_id: n for n, stage_run_id in enumerate(attempts)}
    runs.sort(key=lambda run: order[run[_ID]])
    return Claimed(runs, jobs, payloads)


def _payload(ref: str | None, inline: bytes | None) -> ObjectRef | bytes | None:
    return inline if ref is None else ObjectRef.model_validate_json(ref)


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
