"""Waits: why jobs wait, and for how long. Computed from the rows as they are whenever a job is read.

Nothing of another tenant is counted: a position counts the tenant's own stage runs. How long a job waits depends on the
others' work, so an estimate does as well. A caller who may not see others' work is told it in coarse steps, because
finer ones would tell how much of it there is.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from sqlalchemy import CompoundSelect, Connection, false, null, select, union_all

from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.seen_tables import DownEngineRow
from omni_jobs.database.statement import AnyRow
from omni_jobs.database.tables import WorkerRow
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs.life.successors import ACTIVE, QUOTA
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.order.down_engines import KEPT_S
from omni_jobs.jobs.order.paused_stages import paused_since, paused_stages
from omni_jobs.jobs.read import line
from omni_jobs.jobs.read.estimates import coarse
from omni_jobs.jobs.read.line import QueuedRun, Wait
from omni_jobs.priority import Priority
from omni_jobs.states import StageRunState
from omni_jobs.views import EstimateView, WaitingView


class Detail(Enum):
    """How finely an estimate is told."""

    COARSE = auto()  # to a tenant, who may not learn how much others have to do
    FINE = auto()  # to operators


_Stage = tuple[str, str]  # pipeline, stage
_Files = dict[str, str]  # the versions of pipeline files, by digest

_BASIS = "the work before it in the line, how long stage runs took lately, and the slots of the live workers"
_BASIS_OF_FREE_SLOT = "a slot is free"

# Built once, because SQLAlchemy would visit every part of it with every call.
_FILES_OF_WORKERS = (
    select(
        WorkerRow.pipeline,
        WorkerRow.stage,
        WorkerRow.pipeline_digest,
        WorkerRow.pipeline_version,
        WorkerRow.loading,
        WorkerRow.drained_at.is_not(None).label("is_drained"),
    )
    .where(WorkerRow.lease_until > now())
    .distinct()
)
_DOWN = select(
    DownEngineRow.pipeline, DownEngineRow.stage, DownEngineRow.pipeline_digest, null(), false(), false()
).where(DownEngineRow.at >= now() - KEPT_S)
_FILES: CompoundSelect[Any] = union_all(_FILES_OF_WORKERS, _DOWN)  # a slot whose engine is down has no version in it


def waits(
    tx: Connection, jobs: Sequence[AnyRow], runs: Mapping[str, Sequence[AnyRow]], detail: Detail | None
) -> dict[str, WaitingView]:
    """Return why these jobs wait, by job id; jobs that do not are left out. With a ``detail``: and for how long.

    ``jobs`` and ``runs``, by job id, are the columns that a view shows. Of several queued stage runs the first is named
    that waits for something else than its turn. A job that runs does not wait for a turn.
    """
    queued = {
        job.id: waiting
        for job in jobs
        if job.state in ACTIVE and (waiting := [run for run in runs[job.id] if run.state == StageRunState.QUEUED])
    }
    found = _held(tx, [job for job in jobs if job.state in ACTIVE], runs)
    if not queued:
        return found
    stages = _Stages(tx)
    for job in jobs:
        for run in queued.get(job.id, ()):
            if (view := stages.obstacle(job, run)) is not None:
                found[job.id] = view
                break
        else:
            is_running = any(run.state == StageRunState.RUNNING for run in runs[job.id])
            if job.id in queued and not is_running:
                found[job.id] = _turn(tx, job, queued[job.id][0], detail)
    return found


def _held(tx: Connection, jobs: Sequence[AnyRow], runs: Mapping[str, Sequence[AnyRow]]) -> dict[str, WaitingView]:
    """Return the views of those of these active jobs that are held, by job id."""
    held = {job.id: run for job in jobs for run in reversed(runs[job.id]) if run.reason == QUOTA}
    if not held:
        return {}
    waiting = [job for job in jobs if job.id in held]
    tenants = {job.tenant for job in waiting}
    limits = quota.limits(tx, tenants)
    messages = {tenant: _beyond_limit(tenant, limits.get(tenant)) for tenant in tenants}
    return {job.id: _view(job, held[job.id], QUOTA, messages[job.tenant]) for job in waiting}


def _beyond_limit(tenant: str, limit: int | None) -> str:
    if limit is None:
        return f"tenant {tenant} has no limit of running jobs any more: the job goes on within seconds"
    return f"tenant {tenant} may run {limit} jobs at a time: this one goes on when another has ended"


class _Stages:
    """What keeps all stage runs of a stage waiting: pauses, engines that are down, and files that its workers lack."""

    def __init__(self, tx: Connection) -> None:
        """Read the pauses and the live workers' files."""
        self._paused = paused_stages(tx)
        self._serving: dict[_Stage, _Files] = defaultdict(dict)
        self._loading: dict[_Stage, _Files] = defaultdict(dict)
        self._drained: dict[_Stage, _Files] = defaultdict(dict)
        self._down: dict[_Stage, set[str | None]] = defaultdict(set)
        for row in tx.execute(_FILES):
            if row.pipeline_version is None:
                self._down[row.pipeline, row.stage].add(row.pipeline_digest)
                continue
            files = self._drained if row.is_drained else self._loading if row.loading else self._serving
            files[row.pipeline, row.stage][row.pipeline_digest] = row.pipeline_version

    def obstacle(self, job: AnyRow, run: AnyRow) -> WaitingView | None:
        """Return why a queued stage run could not be claimed whatever its turn; None if it could."""
        stage = job.pipeline, run.stage
        if paused_since(self._paused, job.pipeline, job.pipeline_version, run.stage) is not None:
            whose = "" if stage in self._paused else f" for version {job.pipeline_version}"
            return _view(job, run, "paused", f"stage {run.stage} is paused{whose}")
        if job.pipeline_digest not in self._serving[stage]:
            is_loading = job.pipeline_digest in self._loading[stage]
            if job.pipeline_digest in self._down[stage] or (None in self._down[stage] and not self._serving[stage]):
                then = "a worker loads it again" if is_loading else "no worker loads it yet"
                return _view(job, run, "engine_down", f"the engine of stage {run.stage} is down, and {then}")
            if is_loading:
                return _view(job, run, "loading_model", f"the workers of stage {run.stage} load their model")
            if job.pipeline_digest in self._drained[stage]:
                message = f"the workers of stage {run.stage} that have the job's pipeline file are drained"
                return _view(job, run, "no_worker", message)
            return _view(job, run, "no_worker", _no_worker(job, run.stage, self._serving[stage]))
        if run.is_early:
            message = "an attempt failed, and the next one is due after a pause"
            return _view(job, run, "retry_backoff", message, due_at=as_datetime(run.due))
        return None


def _no_worker(job: AnyRow, stage: str, others: _Files) -> str:
    """Say that no worker has the job's pipeline file; ``others`` are those of live workers."""
    if not others:
        return f"no worker of stage {stage} serves"
    known = ", ".join(sorted(f"{theirs} (digest {its})" for its, theirs in others.items()))
    return (
        f"no worker of stage {stage} has the pipeline file that the job was submitted with, "
        f"version {job.pipeline_version} (digest {job.pipeline_digest}); "
        f"those that serve have another, version {known}"
    )


def _turn(tx: Connection, job: AnyRow, run: AnyRow, detail: Detail | None) -> WaitingView:
    """Say that a stage run waits for its turn; with a detail also what stands before it, and for how long."""
    if detail is None:
        return _view(job, run, "turn", f"it waits for its turn at stage {run.stage}")
    its = StageId(PipelineId(job.pipeline, job.pipeline_digest), run.stage)
    is_high = job.priority == Priority.HIGH
    standing = QueuedRun(run.turn, run.id, is_high)
    own_place = line.own_place(tx, its, standing, job.tenant)
    place = line.place(tx, its, standing)
    wait = line.expected_wait(place, line.pace(tx, its), line.factors_of(tx, its), is_high)
    own = f"{own_place.before}{'' if own_place.is_exact else ' or more'}"
    message = f"{own} of your own stage runs stand before it at stage {run.stage}"
    if wait is None:
        message += "; no stage run has ended there yet, so nobody knows how long it waits"
    return _view(
        job,
        run,
        "turn",
        message,
        position=own_place.before,
        position_is_exact=own_place.is_exact,
        estimate=None if wait is None else _estimate(wait, detail),
    )


def _estimate(wait: Wait, detail: Detail) -> EstimateView:
    told = coarse(wait.told) if detail is Detail.COARSE else wait.told
    low_s, high_s = (round(seconds, 1) for seconds in told)
    return EstimateView(low_s=low_s, high_s=high_s, basis=_BASIS if wait.point_s else _BASIS_OF_FREE_SLOT)


def _view(job: AnyRow, run: AnyRow, reason: str, message: str, **more: Any) -> WaitingView:
    return WaitingView(
        reason=reason,  # type: ignore[arg-type]
        stage=run.stage,
        pipeline_version=job.pipeline_version,
        pipeline_digest=job.pipeline_digest,
        message=message,
        **more,
    )
