"""What readers see of jobs, stage runs and workers. :class:`JobView` is the API's JSON for a job.

Only pydantic: the client reads its answers with these types, and needs no database for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from omni_jobs.states import JobState, StageRunState

__all__ = [
    "ArtifactView",
    "AttemptErrorView",
    "BulkAnswer",
    "Counts",
    "ErrorView",
    "EventView",
    "JobView",
    "Page",
    "PipelineList",
    "PipelineView",
    "ProgressView",
    "StageCount",
    "StageRunView",
    "StageView",
    "WaitingView",
    "WarningView",
    "WorkerView",
    "merged_result",
]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorView(_View):
    """An error of the tree in omni_jobs.errors; what does not apply is null."""

    code: str
    message: str
    retryable: bool = False
    field: str | None = None
    stage: str | None = None
    key: str | None = None


class BulkAnswer(_View):
    """What became of one line of a bulk: its job, or its error."""

    line: int  # from 1
    id: str | None = None
    created: bool = False  # False: the bulk was sent before, and made this job then
    error: ErrorView | None = None


class StageView(_View):
    """A stage, and what a job may set in ``stages.<name>``, with its defaults."""

    name: str
    kind: str
    inputs: dict[str, str]  # earlier stage → what is taken from it
    parameters: dict[str, Any]


class PipelineView(_View):
    """A pipeline. ``model`` of a job's request is its name."""

    name: str
    version: str
    description: str
    accepts: list[str]
    modalities: list[str]
    voices: list[str]  # the first is the default
    stages: list[StageView]
    trouble: ErrorView | None  # why this server takes no jobs for it


class PipelineList(_View):
    """The pipelines that a server serves."""

    pipelines: list[PipelineView]


class AttemptErrorView(ErrorView):
    """How one attempt of a stage run failed."""

    attempt: int
    worker: str
    at: datetime


class ProgressView(_View):
    """How far a stage run is: ``done`` of ``total`` ``unit``; total null when unknown."""

    done: int
    total: int | None
    unit: str
    text: str | None = None  # all the text so far, of a stage that makes text


class StageRunView(_View):
    """One stage of a job."""

    name: str
    status: StageRunState
    attempt: int  # 0 before the first claim
    reason: str | None  # why it waits, when that is not its turn: retry_backoff, no_worker
    queued_at: datetime | None
    started_at: datetime | None  # of the last attempt
    finished_at: datetime | None
    progress: ProgressView | None
    payload_bytes: int | None
    worker: str | None
    errors: list[AttemptErrorView]
    finish_reason: str | None = None  # of a stage that makes tokens, once succeeded: stop, or length when it was cut


class WaitingView(_View):
    """Why a job does not go on, although it is its turn."""

    reason: Literal["no_worker"]  # no live worker serves the stage with the pipeline file the job was submitted with
    stage: str
    pipeline_version: str  # of that file
    pipeline_digest: str | None  # of that file, as `omni-jobs pipelines check` shows it; null: any file would do
    message: str


class WarningView(_View):
    """What the user should know of a stage's output, which was made all the same."""

    code: str  # cut_short: it stopped at its limit, not at its end
    stage: str
    message: str


class ArtifactView(_View):
    """An output to fetch from ``url``."""

    name: str
    media_type: str
    bytes: int
    digest: str
    url: str  # path on this API


class JobView(_View):
    """A job. Times are UTC."""

    id: str
    object: Literal["job"] = "job"
    pipeline: str
    pipeline_version: str
    status: JobState
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    modalities: list[str]
    stages: list[StageRunView]
    waiting: WaitingView | None = None  # looked up when the job is read; null in the answer to its submit
    warnings: list[WarningView] = []
    result: dict[str, Any] | None  # set when completed
    artifacts: list[ArtifactView]
    error: ErrorView | None  # set when failed or expired
    metadata: dict[str, Any]
    seed: int
    expires_at: datetime | None = None  # its deadline
    retries: int = 0  # how often it was sent on again after its end
    tenant: str = "default"


class EventView(_View):
    """A change of a job's state."""

    id: int
    type: str  # job.completed, job.failed, job.cancelled, job.expired, job.cancelling, job.retried
    at: datetime
    data: dict[str, Any]


class Page(_View):
    """Jobs, the newest first."""

    jobs: list[JobView]
    next_cursor: str | None  # null: these were the last


class StageCount(_View):
    """How many stage runs of a stage are in a state."""

    pipeline: str
    stage: str
    state: StageRunState  # pending, queued or running
    count: int


class Counts(_View):
    """What has not ended."""

    jobs: dict[JobState, int]
    stage_runs: list[StageCount]


class WorkerView(_View):
    """A worker with a live lease."""

    id: str
    slot: str
    pipeline: str
    stage: str
    host: str
    pid: int
    slots: int
    pipeline_version: str
    pipeline_digest: str  # of its pipeline file: it runs jobs of no other
    running: int  # stage runs it holds
    started_at: datetime
    renewed_at: datetime
    lease_until: datetime


def merged_result(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A job's result: those of its stage runs, objects of one name (``usage``, …) merged, else the later counts."""
    result: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            known = result.get(name)
            if isinstance(known, dict) and isinstance(value, Mapping):
                result[name] = merged_result([known, value])
            else:
                result[name] = value
    return result
