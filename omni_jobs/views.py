"""The views of jobs, stage runs, pipelines and workers: the JSON that the API answers and the client reads.

Imports pydantic alone, because the client needs neither a database nor a server.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from omni_jobs.identity import DEFAULT_TENANT
from omni_jobs.priority import Priority
from omni_jobs.states import JobState, StageRunState


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorView(_View):
    """An error of the tree in omni_jobs.errors; a field that does not apply is null."""

    code: str
    message: str
    retryable: bool = False
    field: str | None = None
    stage: str | None = None
    key: str | None = None


class RequestErrorView(ErrorView):
    """The error of a refused request. It has the fields of OpenAI's errors too, because its clients read those."""

    type: str  # OpenAI's class of the error, by the status of the answer
    param: str | None  # OpenAI's name for ``field``
    job_id: str | None = None  # the job that failed, or that goes on


class BulkAnswer(_View):
    """The answer to one line of a bulk: its job, or its error."""

    line: int  # from 1
    id: str | None = None
    created: bool = False  # False: an earlier bulk, or try, of the same key made the job
    error: RequestErrorView | None = None


class BoundsView(_View):
    """What a number may be that a job sets: the model's bounds, narrowed by the ``limits`` of the stage config."""

    at_least: int | float | None = None
    more_than: int | float | None = None
    at_most: int | float | None = None
    less_than: int | float | None = None
    multiple_of: int | float | None = None


class StageView(_View):
    """A stage of a pipeline. ``parameters`` has the defaults of what a job may set in ``stages.<name>``."""

    name: str
    kind: str
    inputs: dict[str, str]  # earlier stage → the flow taken from it
    produces: str = ""  # a flow
    parameters: dict[str, Any]
    bounds: dict[str, BoundsView] = {}  # of each number among them, and of what is computed of them or of the input
    paused_at: datetime | None = None  # since then its workers claim nothing; null: it is not paused
    resumable: bool = False  # whether a run of it goes on from a snapshot after a loss; else all its steps run again


class FormatView(_View):
    """A format in which a job may ask for an output."""

    name: str
    media_type: str
    artifact: str  # the artifact's name


class OutputView(_View):
    """An output of a pipeline, which a job asks for by its modality."""

    modality: str
    stage: str  # makes it
    flow: str  # what it is made of
    formats: list[FormatView]  # the first is the default; none: it stands in the job's result


class PipelineView(_View):
    """A version of a pipeline. A job's request names it in ``model``, by its label or as NAME@VERSION."""

    name: str
    label: str  # its name, or NAME@VERSION beside a newer version
    version: str
    digest: str | None  # of what decides a result, as `omni-jobs pipelines check` shows it; null: a plug-in is broken
    description: str
    accepts: list[str]
    modalities: list[str]
    outputs: list[OutputView] = []
    voices: list[str]  # the first one is the default
    stages: list[StageView]
    trouble: ErrorView | None  # the reason why this server takes no jobs for it, if any


class PipelineList(_View):
    """The pipelines that a server serves."""

    pipelines: list[PipelineView]


class PipelineVersionView(_View):
    """A version of a pipeline that some server or worker has had: whether it takes new jobs, and what it has left."""

    pipeline: str
    version: str
    digest: str  # of its file, as `omni-jobs pipelines check` shows it
    state: Literal["serving", "draining"]
    is_default: bool  # whether `model` means this version when it has no version
    is_here: bool  # whether this server has its file
    first_seen_at: datetime
    draining_at: datetime | None
    queued: int  # its jobs, of all tenants, by state
    in_progress: int
    cancelling: int
    workers: int
    workers_may_go: bool  # it is draining, and no job is left


class PipelineVersionList(_View):
    """The versions of all pipelines, by pipeline and the time when they were first seen."""

    versions: list[PipelineVersionView]


class AttemptErrorView(ErrorView):
    """The error of one failed attempt of a stage run."""

    attempt: int
    worker: str
    at: datetime
    started_at: datetime | None = None  # when the attempt began; null: an earlier version did not note it
    # Seconds that it spent loading, running and storing; the last of them is where it failed. All null: its worker was
    # lost, and nobody knows.
    load_s: float | None = None
    run_s: float | None = None
    store_s: float | None = None


class ProgressView(_View):
    """The progress of a stage run: ``done`` of ``total``, in ``unit``; ``total`` is null when it is unknown.

    Of tokens, ``total`` is as many as the stage run may make. Once it has succeeded, ``done`` is what it has made.
    """

    done: int
    total: int | None
    unit: str
    text: str | None = None  # the whole text so far; null for a stage that makes no text
    resumed_at: int | None = None  # where the attempt went on from a snapshot; null: it began anew
    picture: str | None = None  # the newest preview while the stage runs, a data URL; for jobs that asked for previews

    def unit_of(self, count: int) -> str:
        """Return the unit as it stands behind a number: "1 sentence", "2 sentences". A short one is an abbreviation."""
        return self.unit.removesuffix("s") if count == 1 and len(self.unit) > 3 else self.unit


class UsageView(_View):
    """What was used: by all attempts that have ended, and of tokens, sound and pictures by those that succeeded."""

    attempts: int = 0  # whatever their end
    worker_s: float = 0.0  # seconds from their claims to their ends, in which each took a slot of a worker
    device_s: float = 0.0  # of those, their shares of the seconds in which an engine was busy, times its devices
    prompt_tokens: int = 0
    completion_tokens: int = 0
    heard_s: float = 0.0  # seconds of the recordings that were transcribed
    sound_s: float = 0.0  # seconds of sound that were made
    pictures: int = 0
    frames: int = 0  # of videos


_WHOLE = frozenset(name for name, field in UsageView.model_fields.items() if field.annotation is int)


def sum_usage(parts: Iterable[Mapping[str, float]]) -> UsageView:
    """Return the sum of what was used, given as mappings from the fields of ``UsageView`` to amounts."""
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    rounded: dict[str, Any] = {
        name: int(amount) if name in _WHOLE else round(amount, 6) for name, amount in total.items()
    }
    return UsageView(**rounded)


class UsageRow(_View):
    """What was used, of the rows that have these in common; null: of any."""

    day: date | None = None  # UTC, on which the attempts ended
    tenant: str | None = None
    pipeline: str | None = None
    stage: str | None = None
    usage: UsageView


class UsageReport(_View):
    """What was used in some days, by what was asked for, and in sum."""

    first_day: date
    last_day: date
    rows: list[UsageRow]
    total: UsageView


class StageRunView(_View):
    """A stage run: one stage of one job."""

    name: str
    status: StageRunState
    attempt: int  # 0 before the first claim
    reason: str | None  # why it waits, if not for its turn: as in the job's waiting
    queued_at: datetime | None
    started_at: datetime | None  # the start of the last attempt
    finished_at: datetime | None
    progress: ProgressView | None
    payload_bytes: int | None
    worker: str | None
    errors: list[AttemptErrorView]
    finish_reason: str | None = None  # of a succeeded stage that makes tokens: stop, or length at its limit
    usage: UsageView | None = None  # of its attempts that have ended, also before a retry; null: there is none
    # Seconds that the last attempt spent loading its inputs, running and storing, told with its end; load_s also while
    # it runs, with its progress. Null: it did not come to the step, or nobody knows.
    load_s: float | None = None
    run_s: float | None = None
    store_s: float | None = None


class EstimateView(_View):
    """The time until a waiting stage starts, from the answer on: an interval that holds in 80 % of the cases."""

    low_s: float
    high_s: float
    basis: str  # of what it was made


class WaitingView(_View):
    """The reason why a job waits, and for how long. ``position`` and ``estimate`` are null in lists of jobs."""

    # turn: for its place in the stage's line. paused: an operator paused the stage. no_worker: no live worker of the
    # stage has the job's pipeline file. loading_model: those that have it load their model. engine_down: its engine
    # died, hangs or could not be loaded, and no other worker of the version serves. retry_backoff: an attempt
    # failed, and the next is due later. quota: its tenant runs as many jobs as it may.
    reason: Literal["turn", "quota", "paused", "no_worker", "loading_model", "engine_down", "retry_backoff"]
    stage: str
    pipeline_version: str  # of the file with which the job was submitted
    pipeline_digest: str  # of that file, as `omni-jobs pipelines check` shows it
    message: str
    position: int | None = None  # of turn: how many stage runs of one's own stand before it in the line
    position_is_exact: bool = True  # false: it may be more, because only 500 of one's own jobs in a state are looked at
    due_at: datetime | None = None  # of retry_backoff: when the next attempt is due
    estimate: EstimateView | None = None  # of turn: null as long as nobody knows how long stage runs take


class StagePauseView(_View):
    """Whether a stage is paused: its workers go on with what they run, and claim nothing."""

    pipeline: str
    version: str | None = None  # that was asked for; null: all
    stage: str
    paused_at: datetime | None  # null: it is not paused


class WorkerDrainView(_View):
    """Whether a worker is drained: it goes on with what it runs, claims nothing, and keeps its engine loaded."""

    id: str
    slot: str
    pipeline: str
    stage: str
    drained_at: datetime | None  # null: it is not drained


class CalibrationView(_View):
    """How good a stage's estimates have been: of the newest 1,000 that were kept, those whose wait has ended."""

    pipeline: str
    stage: str
    estimates: int
    held: int  # the waits that ended within their interval of 80 %
    share: float | None  # held / estimates; null of none


class WarningView(_View):
    """A warning about the output of a stage that succeeded."""

    # cut_short: the output ended at its limit; left_out, nothing_said: a voice could not say words, or any;
    # uncertain: what was heard may not be what was said; refused, tool_calls: a remote model refused, or called tools;
    # and those of other packages' runners
    code: str
    stage: str
    message: str


class ArtifactView(_View):
    """An artifact: a stored output that the user may fetch from ``url``."""

    name: str
    media_type: str
    bytes: int
    digest: str
    url: str  # a path on this API


class JobView(_View):
    """A job. Times are in UTC."""

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
    waiting: WaitingView | None = None  # null in the answer to a submit
    warnings: list[WarningView] = []
    result: dict[str, Any] | None  # set when completed
    result_so_far: dict[str, Any] | None = None  # unless completed: the results of the stages that have succeeded
    artifacts: list[ArtifactView]
    error: ErrorView | None  # set when failed or expired
    metadata: dict[str, Any]
    seed: int
    expires_at: datetime | None = None  # the deadline
    retries: int = 0  # how often its user retried it after its end
    forked_from: str | None = None  # the job whose earlier stages it took over; that one may be deleted by now
    tenant: str = DEFAULT_TENANT
    priority: Priority = Priority.NORMAL  # among its tenant's jobs
    usage: UsageView | None = None  # the sum of its stages'; null: no attempt has ended

    @property
    def made(self) -> dict[str, Any]:
        """The result, or that of the stages that have succeeded; empty if none has, or the view is brief."""
        return self.result or self.result_so_far or {}


class EventView(_View):
    """An event: a job is cancelling, has ended or was retried."""

    id: int  # numbers the events of its job, from 1
    type: str  # job.completed, job.failed, job.cancelled, job.expired, job.cancelling, job.retried
    at: datetime
    data: dict[str, Any]


class Page(_View):
    """One page of a list of jobs, the newest first."""

    jobs: list[JobView]
    next_cursor: str | None  # null: this is the last page


class SkippedJobs(_View):
    """Jobs that an action on many has left as they are, all for one kind of reason."""

    code: str  # the error's
    count: int
    job_id: str  # the first of them
    message: str  # the reason for that one


class JobActionView(_View):
    """What an action on many jobs has done: so far, while there is a ``next_cursor``."""

    action: Literal["cancel", "retry", "advance", "delete"]
    dry_run: bool
    matched: int  # the jobs that match and may be changed so; with dry_run they were counted alone
    changed: int  # of them; 0 with dry_run
    skipped: list[SkippedJobs] = []  # the others, which changed meanwhile or cannot be retried
    next_cursor: str | None = None  # send the request again with it as ``cursor``; null: no further job matches
    stopped_by: ErrorView | None = None  # why it ended before its bound, such as a full backlog; null: it did not


class StageCount(_View):
    """The number of stage runs of one stage and pipeline file in one state."""

    pipeline: str
    pipeline_digest: str
    stage: str
    state: StageRunState  # pending, queued or running
    count: int


class Counts(_View):
    """The numbers of jobs and stage runs that have not ended."""

    jobs: dict[JobState, int]
    stage_runs: list[StageCount]


class ScalingView(_View):
    """How many workers a stage of one version should have, and what this follows from."""

    pipeline: str
    version: str
    stage: str
    wanted: int  # workers: as many as start what waits now in time, and those that are drained on top
    waiting: int  # queued stage runs
    running: int  # stage runs, also in drained workers
    workers: int  # those that serve: one that is drained takes nothing, and does not
    busy: int  # workers: those that serve and run something, and those that load
    loading: int  # workers that load their engine
    drained: int = 0  # workers that an operator has drained
    run_s: (
        float | None
    )  # how long a stage run took the workers lately, or any within a day, in the mean; null: not known
    paused: bool  # the stage: as many workers are wanted as there are


class WorkerInfo(_View):
    """What a worker says of its process. What is not known is null, or left out."""

    device: str | None = None  # cpu, or cuda with the numbers of its cards
    versions: dict[str, str] = {}  # of Python, omni-jobs and the engine's packages
    metrics_port: int | None = None  # where its host shows its metrics


class WorkerView(_View):
    """A worker whose lease has not run out, and whose engine is loaded."""

    id: str
    slot: str  # its name: a successor of the same name takes its place
    pipeline: str
    stage: str
    host: str
    pid: int
    slots: int  # the stage runs that it can hold at once
    pipeline_version: str
    pipeline_digest: str  # of its pipeline file; it runs jobs of this file only
    running: int  # the stage runs that it holds
    info: WorkerInfo = WorkerInfo()
    ended: dict[str, int] = {}  # attempts since its start by result: completed, released, lost, or an error's code
    memory_bytes: int | None = None  # of its process in the host's memory, without its engine's processes
    claimed_at: datetime | None = None  # when it claimed last
    drained_at: datetime | None = None  # since then it claims nothing; null: it is not drained
    started_at: datetime
    renewed_at: datetime
    lease_until: datetime


class StageLoad(_View):
    """A stage: how many stage runs it has in each state, and how many workers and slots.

    Where several versions of its pipeline have workers or stage runs, each has its own.
    """

    pipeline: str
    stage: str
    version: str | None = None  # the only one that is counted; null: no other version has workers or stage runs
    draining: bool = False  # that version takes no new jobs: what it has is what is left of it
    pending: int  # stage runs that wait for an earlier stage
    queued: int
    running: int
    workers: int  # that serve: neither do those that load, nor those that are drained
    slots: int  # the stage runs that those workers can hold together, and those that drained ones still hold
    paused: bool  # its workers claim nothing
    drained: int = 0  # workers that claim nothing any more
    down: int = 0  # workers whose engine died, hangs or could not be loaded, until another serves in their slot

    @property
    def reference(self) -> str:
        """The pipeline's name, with the version where several are told apart."""
        return self.pipeline if self.version is None else f"{self.pipeline}@{self.version}"


class RecentJob(_View):
    """A job in the list of the newest jobs. GET /v1/jobs/{id} returns the whole job."""

    id: str
    pipeline: str
    status: JobState
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stages: list[StageRunView]
    waiting: WaitingView | None
    warnings: list[WarningView]
    artifacts: list[str]  # their URLs
    pictures: list[str]  # the URLs of those artifacts that a page may show
    error: ErrorView | None


class Status(_View):
    """What the status says: jobs by state, stages, workers and the newest jobs, some of it moments old."""

    at: datetime
    jobs: dict[JobState, int]  # those that have not ended
    stages: list[StageLoad]
    workers: list[WorkerView]
    recent: list[RecentJob]
    has_session: bool  # whether the callers have keys, which a browser keeps in a session


def merge_results(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a job's result: the results of its stage runs, in order, merged into one object.

    Where two results share a name, two objects (``usage``) are merged, and of other values the later one stays.
    """
    result: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            known = result.get(name)
            if isinstance(known, dict) and isinstance(value, Mapping):
                result[name] = merge_results([known, value])
            else:
                result[name] = value
    return result
