"""Queries of what the API shows of a job: its view, its events, its artifacts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Text, bindparam, exists, select

from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import AnyRow, listed
from omni_jobs.database.tables import (
    RETRY_TOKEN,
    AbandonedJobRow,
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    ForkRow,
    JobRow,
    StageRunRow,
)
from omni_jobs.errors import Gone, NotFound
from omni_jobs.jobs.life.progress import MOST_TEXT
from omni_jobs.jobs.read.waits import Detail, waits
from omni_jobs.jobs.read.watched import text_so_far
from omni_jobs.jobs.values import StoredArtifact, WantedText
from omni_jobs.priority import Priority
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef
from omni_jobs.views import (
    ArtifactView,
    AttemptErrorView,
    ErrorView,
    EventView,
    JobView,
    ProgressView,
    StageRunView,
    WaitingView,
    WarningView,
    merge_results,
    sum_usage,
)

# Built once, because SQLAlchemy would visit every part of them with every call.
_ids = bindparam("ids", type_=Text)
# Neither the request, which may be megabytes, nor the other columns that only workers read.
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
    JobRow.priority,
    JobRow.error,
    JobRow.deadline,
    JobRow.retries,
    select(ForkRow.origin).where(ForkRow.job_id == JobRow.id).scalar_subquery().label("forked_from"),
    JobRow.created_at,
    JobRow.started_at,
    JobRow.finished_at,
)
_IS_LEFT = exists().where(AbandonedJobRow.job_id == JobRow.id).label("is_left")
_JOB = select(*_SHOWN, _IS_LEFT).where(JobRow.id == bindparam("job_id"))
_JOB_OF_TENANT = _JOB.where(JobRow.tenant == bindparam("tenant"))
_REQUEST = select(JobRow.request).where(JobRow.id == bindparam("job_id"))
_JOBS = select(*_SHOWN).where(one_of(JobRow.id, _ids)).order_by(JobRow.id.desc())
_STAGE_RUNS_BUT_RESULTS = select(
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.position,
    StageRunRow.stage,
    StageRunRow.state,
    StageRunRow.attempt,
    StageRunRow.failures,
    StageRunRow.reason,
    StageRunRow.turn,
    StageRunRow.due,
    (StageRunRow.due > now()).label("is_early"),
    StageRunRow.queued_at,
    StageRunRow.started_at,
    StageRunRow.finished_at,
    StageRunRow.progress,
    StageRunRow.payload_bytes,
    StageRunRow.owner,
    StageRunRow.finish_reason,
    StageRunRow.warnings,
    StageRunRow.usage,
    StageRunRow.steps,
).where(one_of(StageRunRow.job_id, _ids))
_STAGE_RUNS = _STAGE_RUNS_BUT_RESULTS.add_columns(StageRunRow.result)
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


def job_view(tx: Connection, job_id: str, tenant: str | None = None, detail: Detail = Detail.FINE) -> JobView:
    """Return the view of a job, with the estimate of its wait as finely as ``detail`` says.

    Raises NotFound, also for a job of another tenant than ``tenant`` (None: any).
    """
    return _views(tx, [_row(tx, job_id, tenant)], detail=detail)[0]


def view_and_whether_left(
    tx: Connection, job_id: str, tenant: str | None = None, detail: Detail = Detail.FINE
) -> tuple[JobView, bool]:
    """Return what ``job_view`` returns, and whether the job is to be cancelled because its client has left.

    Raises as that does.
    """
    row = _row(tx, job_id, tenant)
    return _views(tx, [row], detail=detail)[0], bool(row.is_left)


def owned(tx: Connection, job_id: str, tenant: str | None) -> str:
    """Return the job's id. Raises NotFound, as for a job that never was, unless it is this tenant's (None: any)."""
    if tenant is not None:
        _row(tx, job_id, tenant)
    return job_id


def _row(tx: Connection, job_id: str, tenant: str | None) -> AnyRow:
    """Return the shown columns of a job. Raises NotFound."""
    # PostgreSQL's text refuses NUL characters and surrogates.
    row = None
    if job_id.isprintable() and tenant is None:
        row = tx.execute(_JOB, {"job_id": job_id}).one_or_none()
    elif job_id.isprintable():
        row = tx.execute(_JOB_OF_TENANT, {"job_id": job_id, "tenant": tenant}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    return row


def admitted_request(tx: Connection, job_id: str, tenant: str | None = None) -> dict[str, Any]:
    """Return the request of a job as it was admitted, ``NewJob.request``. Raises NotFound as ``job_view`` does."""
    _row(tx, job_id, tenant)
    return tx.execute(_REQUEST, {"job_id": job_id}).scalar_one()  # type: ignore[no-any-return]


def views_of(tx: Connection, job_ids: Sequence[str], brief: bool = False) -> list[JobView]:
    """Return the views of those of these jobs that exist, the newest first; ``brief`` views have no results."""
    return _views(tx, tx.execute(_JOBS, {"ids": listed(job_ids)}).all(), brief)


def events(tx: Connection, job_id: str, tenant: str | None = None) -> list[EventView]:
    """Return the events of a job that are still kept, the oldest first. Raises NotFound as ``job_view`` does."""
    _row(tx, job_id, tenant)
    rows = tx.execute(select(EventRow.__table__).where(EventRow.job_id == job_id).order_by(EventRow.number))
    return [
        EventView(
            id=row.number,
            type=row.type,
            at=as_datetime(row.at),
            data={name: value for name, value in row.data.items() if name != RETRY_TOKEN},
        )
        for row in rows
    ]


def artifact(tx: Connection, job_id: str, name: str, tenant: str | None = None) -> StoredArtifact:
    """Return a job's artifact and the reference to its object.

    Raises NotFound, also for a job of another tenant, and Gone when it is kept no longer.
    """
    owned(tx, job_id, tenant)
    row = None
    if job_id.isprintable() and name.isprintable():
        is_it = (ArtifactRow.job_id == job_id, ArtifactRow.name == name)
        row = tx.execute(select(ArtifactRow.media_type, ArtifactRow.ref).where(*is_it)).one_or_none()
        if row is None and tx.execute(select(JobRow.artifacts_gone).where(JobRow.id == job_id)).scalar():
            raise Gone(f"the artifacts of job {job_id} are not kept any longer", field="name")
    if row is None:
        raise NotFound(f"job {job_id!r} has no artifact {name!r}", field="name")
    return StoredArtifact(name, row.media_type, ObjectRef.model_validate(row.ref))


def _views(tx: Connection, rows: Sequence[AnyRow], brief: bool = False, detail: Detail | None = None) -> list[JobView]:
    """Return the views of the jobs whose shown columns these are, in their order.

    ``brief`` views have no results. With a ``detail`` a view says for how long its job waits.
    """
    ids = [row.id for row in rows]
    if not ids:
        return []
    stage_runs = _STAGE_RUNS_BUT_RESULTS if brief else _STAGE_RUNS
    runs: dict[str, list[AnyRow]] = defaultdict(list)
    for run in sorted(tx.execute(stage_runs, {"ids": listed(ids)}), key=lambda run: run.position):
        runs[run.job_id].append(run)
    retried = {row.id for row in rows if row.retries}  # their failures began to count anew, their errors stayed
    errors = _errors(
        tx, [run.id for of_job in runs.values() for run in of_job if run.failures or run.job_id in retried]
    )
    artifacts = _artifacts(tx, ids)
    waiting = waits(tx, rows, runs, detail)
    texts = {} if detail is None else _texts_in_pieces(tx, [run for of_job in runs.values() for run in of_job])
    return [_view(row, runs[row.id], errors, artifacts[row.id], waiting.get(row.id), texts, brief) for row in rows]


def _texts_in_pieces(tx: Connection, runs: Sequence[AnyRow]) -> Mapping[int, str]:
    """Return the texts so far that are written in pieces, because their jobs are watched, by stage run id."""
    wanted = [
        WantedText(run.job_id, run.id, run.attempt, max(0, chars - MOST_TEXT))
        for run in runs
        if run.progress is not None and (chars := run.progress.get("chars"))
    ]
    return text_so_far(tx, wanted) if wanted else {}


def _artifacts(tx: Connection, job_ids: Sequence[str]) -> Mapping[str, list[ArtifactView]]:
    """Return the artifacts of these jobs by job id, sorted by name; an empty list for a job without any."""
    artifacts: dict[str, list[ArtifactView]] = defaultdict(list)
    for job_id, name, media_type, ref in tx.execute(_ARTIFACTS, {"ids": listed(job_ids)}):
        url = f"/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}"
        artifacts[job_id].append(
            ArtifactView(name=name, media_type=media_type, bytes=ref["size"], digest=ref["digest"], url=url)
        )
    return artifacts


def _errors(tx: Connection, stage_run_ids: Sequence[int]) -> dict[int, list[AttemptErrorView]]:
    """Return the errors of these stage runs' attempts by stage run id, the oldest first."""
    errors: dict[int, list[AttemptErrorView]] = defaultdict(list)
    if not stage_run_ids:
        return errors
    for row in tx.execute(_ERRORS, {"ids": listed(stage_run_ids)}):
        errors[row.stage_run_id].append(
            AttemptErrorView(attempt=row.attempt, worker=row.worker, at=as_datetime(row.at), **row.error)
        )
    return errors


def _view(
    row: AnyRow,
    runs: Sequence[AnyRow],
    errors: Mapping[int, list[AttemptErrorView]],
    artifacts: list[ArtifactView],
    waiting: WaitingView | None,
    texts: Mapping[int, str],
    brief: bool,
) -> JobView:
    status = JobState(row.state)
    made = {} if brief else merge_results(run.result or {} for run in runs)
    return JobView(
        id=row.id,
        pipeline=row.pipeline,
        pipeline_version=row.pipeline_version,
        status=status,
        created_at=as_datetime(row.created_at),
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        modalities=row.modalities,
        stages=[
            StageRunView(
                name=run.stage,
                status=StageRunState(run.state),
                attempt=run.attempt,
                reason=_reason(run, waiting),
                queued_at=_time(run.queued_at),
                started_at=_time(run.started_at),
                finished_at=_time(run.finished_at),
                progress=_progress(run, texts.get(run.id)),
                payload_bytes=run.payload_bytes,
                worker=run.owner,
                errors=errors.get(run.id, []),
                finish_reason=run.finish_reason,
                usage=None if run.usage is None else sum_usage([run.usage]),
                **_steps(run),
            )
            for run in runs
        ],
        waiting=waiting,
        warnings=[WarningView(stage=run.stage, **each) for run in runs for each in run.warnings or ()],
        result=made if status is JobState.COMPLETED and not brief else None,
        result_so_far=made if made and status is not JobState.COMPLETED else None,
        artifacts=artifacts,
        error=None if row.error is None else ErrorView(**row.error),
        metadata=row.metadata,
        seed=row.seed,
        expires_at=_time(row.deadline),
        retries=row.retries,
        forked_from=row.forked_from,
        tenant=row.tenant,
        priority=Priority(row.priority),
        usage=sum_usage(used) if (used := [run.usage for run in runs if run.usage is not None]) else None,
    )


def _steps(run: AnyRow) -> Mapping[str, float]:
    """Return the seconds of the last attempt's steps by the fields of the view, as far as they are known."""
    if run.state == StageRunState.RUNNING and run.progress is not None and "load_s" in run.progress:
        return {"load_s": run.progress["load_s"]}
    return run.steps or {}


def _progress(run: AnyRow, text: str | None) -> ProgressView | None:
    """Return the stage run's progress; None where nothing tells how much one that succeeded has made.

    ``text`` is the text so far, where the progress lacks it because it is written in pieces. The last report may have
    come before the end. The preview is of no use after it.
    """
    if run.progress is None:
        return None
    progress = ProgressView(**run.progress)
    if text is not None:
        progress = progress.model_copy(update={"text": text})
    if run.state == StageRunState.RUNNING:
        return progress
    done = _made(run, progress) if run.state == StageRunState.SUCCEEDED else progress.done
    return None if done is None else progress.model_copy(update={"picture": None, "done": done})


def _made(run: AnyRow, progress: ProgressView) -> int | None:
    """Return how much a stage run has made that succeeded: all of its total, except of the tokens of a model.

    Their total is as many as it may make, so its usage tells; None where that is unknown, or was not read.
    """
    if progress.unit != "tokens" or run.finish_reason is None:
        return progress.total
    usage = (getattr(run, "result", None) or {}).get("usage", {}).get(run.stage, {})
    return usage.get("completion_tokens")  # type: ignore[no-any-return]


def _reason(run: AnyRow, waiting: WaitingView | None) -> str | None:
    """Return why a stage run waits; None if it does not, or waits for its turn."""
    if waiting is not None and waiting.stage == run.stage:
        return None if waiting.reason == "turn" else waiting.reason
    is_over = run.reason == "retry_backoff" and not run.is_early  # the row keeps the reason until the claim
    return None if is_over else run.reason


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else as_datetime(seconds)
