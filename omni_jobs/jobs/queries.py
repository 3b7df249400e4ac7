"""The queries behind what readers see (:mod:`omni_jobs.views`)."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    func,
    select,
    true,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from omni_jobs.database.batch import listed, one_of
from omni_jobs.database.clock import now
from omni_jobs.database.tables import (
    WISH,
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    JobRow,
    StageRunRow,
    WorkerRow,
    state_is,
    state_seen,
)
from omni_jobs.errors import Gone, InvalidRequest, NotFound
from omni_jobs.jobs.values import StoredArtifact
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef
from omni_jobs.views import (
    ArtifactView,
    AttemptErrorView,
    Counts,
    ErrorView,
    EventView,
    JobView,
    Page,
    ProgressView,
    StageCount,
    StageRunView,
    WaitingView,
    WarningView,
    WorkerView,
    merged_result,
)

__all__ = ["artifact", "backlog", "counts", "events", "is_known", "job", "jobs", "unfinished", "waiting", "workers"]

LONGEST_PAGE = 100
PAGE_BYTES = 2 << 20
"""A page ends before the job with which the texts of its jobs (JSON as it is stored) would be more; it holds one."""
FIRST_LOOK = 8
"""Jobs whose sizes are asked for first; then twice as many, and so on: SQLite reads a text to tell its length."""

_AnyRow = Row[*tuple[Any, ...]]

# Built once: SQLAlchemy would look at every part of them with every call.
_ids = bindparam("ids", type_=Text)
# What is shown of a job: not its request, which may be megabytes, nor what else its row keeps for workers.
_SHOWN = (
    JobRow.id,
    JobRow.state,
    JobRow.pipeline,
    JobRow.pipeline_version,
    JobRow.pipeline_digest,
    JobRow.modalities,
    JobRow.user_metadata,
    JobRow.seed,
    JobRow.tenant,
    JobRow.error,
    JobRow.deadline,
    JobRow.retries,
    JobRow.created_at,
    JobRow.started_at,
    JobRow.finished_at,
)
_JOB = select(*_SHOWN).where(JobRow.id == bindparam("job_id"))
_JOBS = select(*_SHOWN).where(one_of(JobRow.id, _ids)).order_by(JobRow.id.desc())
_UNFINISHED = select(JobRow.id).where(one_of(JobRow.id, _ids), JobRow.finished_at.is_(None))
_STAGE_RUNS_BUT_RESULTS = select(
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.position,
    StageRunRow.stage,
    StageRunRow.state,
    StageRunRow.attempt,
    StageRunRow.failures,
    StageRunRow.reason,
    StageRunRow.queued_at,
    StageRunRow.started_at,
    StageRunRow.finished_at,
    StageRunRow.progress,
    StageRunRow.payload_bytes,
    StageRunRow.owner,
    StageRunRow.finish_reason,
    StageRunRow.warnings,
).where(one_of(StageRunRow.job_id, _ids))
_STAGE_RUNS = _STAGE_RUNS_BUT_RESULTS.add_columns(StageRunRow.result)
_LIVE_FILES = (
    select(WorkerRow.pipeline, WorkerRow.stage, WorkerRow.pipeline_digest, WorkerRow.pipeline_version)
    .where(WorkerRow.lease_until > now(), WorkerRow.loading.is_not(true()))
    .distinct()
)
_ACTIVE = (JobState.QUEUED.value, JobState.IN_PROGRESS.value)
_ERRORS = (
    select(AttemptErrorRow.__table__)
    .where(one_of(AttemptErrorRow.stage_run_id, _ids))
    .order_by(AttemptErrorRow.stage_run_id, AttemptErrorRow.attempt)
)
_ARTIFACTS = (
    select(ArtifactRow.job_id, ArtifactRow.name, ArtifactRow.media_type, ArtifactRow.ref)
    .where(one_of(ArtifactRow.job_id, _ids))
    .order_by(ArtifactRow.job_id, ArtifactRow.name)
)


class _stored_bytes(FunctionElement[int]):
    """The bytes of a column of JSON, which is ASCII; PostgreSQL does not read the text for it."""

    type = Integer()
    inherit_cache = True
    name = "stored_bytes"


@compiles(_stored_bytes, "sqlite")
def _stored_bytes_sqlite(element: _stored_bytes, compiler: Any, **options: Any) -> str:
    return f"length({compiler.process(element.clauses, **options)})"


@compiles(_stored_bytes, "postgresql")
def _stored_bytes_postgresql(element: _stored_bytes, compiler: Any, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


def _sizes(brief: bool) -> CompoundSelect[Any]:
    """How many bytes of each job a page shows, but for what all have."""

    def total(*columns: Any) -> ColumnElement[int]:
        parts = (func.coalesce(func.sum(_stored_bytes(column)), 0) for column in columns)
        return reduce(operator.add, parts)

    of_job = select(JobRow.id.label("job_id"), total(JobRow.user_metadata, JobRow.error).label("bytes"))
    of_runs = select(
        StageRunRow.job_id, total(*([] if brief else [StageRunRow.result]), StageRunRow.progress, StageRunRow.warnings)
    )
    of_errors = select(StageRunRow.job_id, total(AttemptErrorRow.error)).join_from(
        StageRunRow, AttemptErrorRow, AttemptErrorRow.stage_run_id == StageRunRow.id
    )
    return union_all(
        of_job.where(one_of(JobRow.id, _ids)).group_by(JobRow.id),
        of_runs.where(one_of(StageRunRow.job_id, _ids)).group_by(StageRunRow.job_id),
        of_errors.where(one_of(StageRunRow.job_id, _ids)).group_by(StageRunRow.job_id),
    )


_SIZES = {brief: _sizes(brief) for brief in (False, True)}


def job(tx: Connection, job_id: str) -> JobView:
    """Raises NotFound."""
    row = None
    if job_id.isprintable():  # PostgreSQL's text refuses NUL characters and surrogates
        row = tx.execute(_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    return _views(tx, [row])[0]


def unfinished(tx: Connection, job_ids: Iterable[str]) -> set[str]:
    return set(tx.execute(_UNFINISHED, {"ids": listed(job_ids)}).scalars())


def is_known(tx: Connection, tenant: str, idempotency_key: str) -> bool:
    named = (JobRow.tenant == tenant, JobRow.idempotency_key == idempotency_key)
    return tx.execute(select(JobRow.id).where(*named)).first() is not None


def jobs(
    tx: Connection,
    limit: int,
    cursor: str | None,
    state: JobState | None,
    pipeline: str | None,
    error_code: str | None,
    brief: bool = False,
) -> Page:
    """Raises InvalidRequest naming ``limit`` or ``cursor``."""
    if not 1 <= limit <= LONGEST_PAGE:
        raise InvalidRequest(f"must be 1 to {LONGEST_PAGE}", field="limit")
    if cursor is not None and not (cursor.startswith("job-") and cursor.isprintable()):
        raise InvalidRequest("not a cursor of this API", field="cursor")
    if pipeline is not None and not pipeline.isprintable():
        raise InvalidRequest("not a pipeline's name", field="pipeline")
    if error_code is not None and not error_code.isprintable():
        raise InvalidRequest("not an error's code", field="error_code")
    newest = select(JobRow.id).order_by(JobRow.id.desc()).limit(limit + 1)
    if cursor is not None:
        newest = newest.where(JobRow.id < cursor)
    ids: Select[str] | CompoundSelect[str]
    if error_code is not None:
        ids = _of_error(newest, error_code, state, pipeline)
    elif pipeline is not None:
        ids = _together(newest, [pipeline], JobState if state is None else [state])
    elif state is not None:
        ids = _together(newest, _pipelines(tx, state), [state])
    else:
        ids = newest
    found = sorted(tx.execute(ids).scalars(), reverse=True)[: limit + 1]
    shown = _fitting(tx, found[:limit], brief)
    views = _views(tx, tx.execute(_JOBS, {"ids": listed(shown)}).all(), brief)
    return Page(jobs=views, next_cursor=shown[-1] if len(shown) < len(found) else None)


def _fitting(tx: Connection, ids: Sequence[str], brief: bool) -> Sequence[str]:
    """The first of these whose texts fit on a page, one at least."""
    size, at, look = 0, 0, FIRST_LOOK
    while at < len(ids):
        sizes: dict[str, int] = defaultdict(int)
        for job_id, found in tx.execute(_SIZES[brief], {"ids": listed(ids[at : at + look])}):
            sizes[job_id] += int(found)
        for number, job_id in enumerate(ids[at : at + look], at):
            size += sizes[job_id]
            if size > PAGE_BYTES and number > 0:
                return ids[:number]
        at, look = at + look, look * 2
    return ids


def _of_error(newest: Select[str], error_code: str, state: JobState | None, pipeline: str | None) -> Select[str]:
    """Few jobs have an error, so its index serves, and no other may."""
    newest = newest.where(JobRow.error_code == error_code)
    if state is not None:
        newest = newest.where(state_seen(JobRow.state, state))
    if pipeline is not None:
        newest = newest.where(JobRow.pipeline.concat("") == pipeline)
    return newest


def _together(newest: Select[str], pipelines: Iterable[str], states: Iterable[JobState]) -> CompoundSelect[str]:
    """The newest of each pipeline in each state: so they lie together in the index."""
    parts = [
        newest.where(JobRow.state == state.value, JobRow.pipeline == pipeline).subquery()
        for pipeline in pipelines
        for state in states
    ]
    return union_all(*(select(part.c.id) for part in parts))


def _pipelines(tx: Connection, state: JobState) -> list[str]:
    """Those with jobs in this state; none: one name that no pipeline has. A step in the index finds the next."""
    in_state = JobRow.state == state.value
    names = select(func.min(JobRow.pipeline).label("name")).where(in_state).cte("names", recursive=True)
    following = select(func.min(JobRow.pipeline)).where(in_state, JobRow.pipeline > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    return list(tx.execute(select(names.c.name).where(names.c.name.is_not(None))).scalars()) or [""]


def artifact(tx: Connection, job_id: str, name: str) -> StoredArtifact:
    """Raises NotFound and Gone."""
    row = None
    if job_id.isprintable() and name.isprintable():
        row = tx.execute(
            select(ArtifactRow.media_type, ArtifactRow.ref).where(
                ArtifactRow.job_id == job_id, ArtifactRow.name == name
            )
        ).one_or_none()
        if row is None and tx.execute(select(JobRow.artifacts_gone).where(JobRow.id == job_id)).scalar():
            raise Gone(f"the artifacts of job {job_id} are not kept any longer", field="name")
    if row is None:
        raise NotFound(f"job {job_id!r} has no artifact {name!r}", field="name")
    return StoredArtifact(name, row.media_type, ObjectRef.model_validate(row.ref))


def counts(tx: Connection) -> Counts:
    active = (JobState.QUEUED, JobState.IN_PROGRESS, JobState.CANCELLING)
    found_jobs = {
        state: tx.execute(select(func.count()).where(state_is(JobRow.state, state))).scalar_one() for state in active
    }
    found: list[StageCount] = []
    # One query a state: each is served by that state's partial index.
    for run_state in (StageRunState.PENDING, StageRunState.QUEUED, StageRunState.RUNNING):
        rows = tx.execute(
            select(StageRunRow.pipeline, StageRunRow.stage, func.count().label("n"))
            .where(state_is(StageRunRow.state, run_state))
            .group_by(StageRunRow.pipeline, StageRunRow.stage)
            .order_by(StageRunRow.pipeline, StageRunRow.stage)
        )
        found += [StageCount(pipeline=row.pipeline, stage=row.stage, state=run_state, count=row.n) for row in rows]
    return Counts(jobs=found_jobs, stage_runs=found)


def events(tx: Connection, job_id: str) -> list[EventView]:
    """Raises NotFound."""
    if not job_id.isprintable() or tx.execute(select(JobRow.id).where(JobRow.id == job_id)).first() is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    rows = tx.execute(select(EventRow.__table__).where(EventRow.job_id == job_id).order_by(EventRow.id))
    return [
        EventView(
            id=row.id,
            type=row.type,
            at=_required_time(row.at),
            data={name: value for name, value in row.data.items() if name != WISH},
        )
        for row in rows
    ]


def backlog(tx: Connection) -> dict[tuple[str, str], int]:
    rows = tx.execute(
        select(JobRow.pipeline, JobRow.tenant, func.count().label("n"))
        .where(state_is(JobRow.state, JobState.QUEUED))
        .group_by(JobRow.pipeline, JobRow.tenant)
    )
    return {(row.pipeline, row.tenant): row.n for row in rows}


def waiting(tx: Connection, pipeline: str, stage: str, at_most: int) -> int:
    due = (
        select(StageRunRow.id)
        .where(
            StageRunRow.pipeline == pipeline,
            StageRunRow.stage == stage,
            state_is(StageRunRow.state, StageRunState.QUEUED),
            StageRunRow.due <= now(),
        )
        .limit(at_most)
    )
    return tx.execute(select(func.count()).select_from(due.subquery())).scalar_one()


def workers(tx: Connection) -> list[WorkerView]:
    held = {
        row.owner: row.n
        for row in tx.execute(
            select(StageRunRow.owner, func.count().label("n"))
            .where(state_is(StageRunRow.state, StageRunState.RUNNING))
            .group_by(StageRunRow.owner)
        )
    }
    rows = tx.execute(
        select(WorkerRow.__table__)
        .where(WorkerRow.lease_until > now(), WorkerRow.loading.is_not(true()))
        .order_by(WorkerRow.pipeline, WorkerRow.stage, WorkerRow.slot)
    )
    return [
        WorkerView(
            id=row.id,
            slot=row.slot,
            pipeline=row.pipeline,
            stage=row.stage,
            host=row.host,
            pid=row.pid,
            slots=row.slots,
            pipeline_version=row.pipeline_version,
            pipeline_digest=row.pipeline_digest,
            running=held.get(row.id, 0),
            started_at=_required_time(row.started_at),
            renewed_at=_required_time(row.renewed_at),
            lease_until=_required_time(row.lease_until),
        )
        for row in rows
    ]


def _views(tx: Connection, rows: Sequence[_AnyRow], brief: bool = False) -> list[JobView]:
    """``brief``: without results."""
    ids = [row.id for row in rows]
    if not ids:
        return []
    stage_runs = _STAGE_RUNS_BUT_RESULTS if brief else _STAGE_RUNS
    runs: dict[str, list[_AnyRow]] = defaultdict(list)
    for run in sorted(tx.execute(stage_runs, {"ids": listed(ids)}), key=lambda run: run.position):
        runs[run.job_id].append(run)
    retried = {row.id for row in rows if row.retries}  # whose failures began to count anew
    errors = _errors(
        tx, [run.id for of_job in runs.values() for run in of_job if run.failures or run.job_id in retried]
    )
    artifacts: dict[str, list[ArtifactView]] = defaultdict(list)
    for row in tx.execute(_ARTIFACTS, {"ids": listed(ids)}):
        ref = ObjectRef.model_validate(row.ref)
        artifacts[row.job_id].append(
            ArtifactView(
                name=row.name,
                media_type=row.media_type,
                bytes=ref.size,
                digest=ref.digest,
                url=f"/v1/jobs/{row.job_id}/artifacts/{quote(row.name, safe='')}",
            )
        )
    waiting = _without_worker(tx, rows, runs)
    return [_view(row, runs[row.id], errors, artifacts[row.id], waiting.get(row.id), brief) for row in rows]


def _without_worker(
    tx: Connection, rows: Sequence[_AnyRow], runs: Mapping[str, Sequence[_AnyRow]]
) -> dict[str, WaitingView]:
    """Those of these jobs of which a queued stage run has no live worker that may take it; the first such one."""
    queued = [
        (row, run)
        for row in rows
        if row.state in _ACTIVE
        for run in reversed(runs[row.id])
        if run.state == StageRunState.QUEUED
    ]
    if not queued:
        return {}
    live: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for worker in tx.execute(_LIVE_FILES):
        live[worker.pipeline, worker.stage][worker.pipeline_digest] = worker.pipeline_version
    found = {}
    for row, run in queued:
        others = live[row.pipeline, run.stage]
        if row.pipeline_digest not in others and (row.pipeline_digest or not others):
            found[row.id] = _no_worker(run.stage, row.pipeline_version, row.pipeline_digest or None, others)
    return found


def _no_worker(stage: str, version: str, digest: str | None, others: Mapping[str, str]) -> WaitingView:
    message = f"no worker of stage {stage} serves"
    if others:
        known = ", ".join(sorted(f"{theirs} (digest {its or 'unknown'})" for its, theirs in others.items()))
        message = (
            f"no worker of stage {stage} has the pipeline file that the job was submitted with, "
            f"version {version} (digest {digest}); those that serve have another, version {known}"
        )
    return WaitingView(
        reason="no_worker", stage=stage, pipeline_version=version, pipeline_digest=digest, message=message
    )


def _errors(tx: Connection, stage_run_ids: Sequence[int]) -> dict[int, list[AttemptErrorView]]:
    found: dict[int, list[AttemptErrorView]] = defaultdict(list)
    if not stage_run_ids:
        return found
    for row in tx.execute(_ERRORS, {"ids": listed(stage_run_ids)}):
        found[row.stage_run_id].append(
            AttemptErrorView(attempt=row.attempt, worker=row.worker, at=_required_time(row.at), **row.error)
        )
    return found


def _view(
    row: _AnyRow,
    runs: Sequence[_AnyRow],
    errors: Mapping[int, list[AttemptErrorView]],
    artifacts: list[ArtifactView],
    waiting: WaitingView | None,
    brief: bool,
) -> JobView:
    status = JobState(row.state)
    return JobView(
        id=row.id,
        pipeline=row.pipeline,
        pipeline_version=row.pipeline_version,
        status=status,
        created_at=_required_time(row.created_at),
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        modalities=row.modalities,
        stages=[
            StageRunView(
                name=run.stage,
                status=StageRunState(run.state),
                attempt=run.attempt,
                reason="no_worker" if waiting is not None and waiting.stage == run.stage else run.reason,
                queued_at=_time(run.queued_at),
                started_at=_time(run.started_at),
                finished_at=_time(run.finished_at),
                progress=None if run.progress is None else ProgressView(**run.progress),
                payload_bytes=run.payload_bytes,
                worker=run.owner,
                errors=errors.get(run.id, []),
                finish_reason=run.finish_reason,
            )
            for run in runs
        ],
        waiting=waiting,
        warnings=[WarningView(stage=run.stage, **each) for run in runs for each in run.warnings or ()],
        result=merged_result(run.result for run in runs) if status is JobState.COMPLETED and not brief else None,
        artifacts=artifacts,
        error=None if row.error is None else ErrorView(**row.error),
        metadata=row.metadata,
        seed=row.seed,
        expires_at=_time(row.deadline),
        retries=row.retries,
        tenant=row.tenant,
    )


def _required_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _required_time(seconds)
