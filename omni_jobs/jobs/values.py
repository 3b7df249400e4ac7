"""What passes between the callers and :class:`omni_jobs.jobs.Jobs`: plain, frozen values.

The most frequent ones are tuples: they are made in half the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from omni_jobs.database.tables import encode_json
from omni_jobs.errors import OmniJobsError, StageError
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits
from omni_jobs.states import JobState
from omni_jobs.storage import ObjectRef

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = [
    "Claim",
    "Completion",
    "Failure",
    "Garbage",
    "Hint",
    "NewArtifact",
    "NewJob",
    "NewStage",
    "NewWorker",
    "Outcome",
    "ProgressReport",
    "PruneResult",
    "RescueResult",
    "Retention",
    "SlotHolder",
    "StoredArtifact",
    "SubmitResult",
]


class Hint(NamedTuple):
    """Word that a stage run may be claimed. May be lost, late or doubled: the row is the truth."""

    stage_run_id: int
    attempt: int  # before the claim: the claim makes it attempt + 1
    queue: str  # the Celery queue it goes to


@dataclass(frozen=True, slots=True)
class NewStage:
    """A stage of a job to be."""

    name: str
    inputs: Sequence[str]  # earlier stages; those outside the job are left out; empty: the job's request
    queue: str
    retries: RetryLimits = DEFAULT_RETRIES
    queue_limit_s: float | None = None  # waiting for longer than this, its job expires


@dataclass(frozen=True, slots=True)
class NewJob:
    """An admitted request, its media stored."""

    job_id: str  # new_job_id()
    pipeline: str
    pipeline_version: str
    pipeline_digest: str  # Pipeline.digest; "": unknown, any worker of its stages may take it
    request: Mapping[str, Any]  # JSON
    modalities: Sequence[str]
    stages: Sequence[NewStage]  # every one after its inputs
    seed: int  # 0 … 2**63-1
    request_digest: str  # equal for the same request sent again
    media: Sequence[Mapping[str, Any]] = ()  # {key, size, digest, media_type}, by number
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = "default"
    expires_in_s: float | None = None  # at most one of the two
    expires_at: float | None = None  # seconds since 1970


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The job of a submit, and what to publish."""

    job_id: str
    created: bool  # False: the idempotency key named a job that was there
    hints: Sequence[Hint] = ()
    created_at: float | None = None  # seconds since 1970; None: the job may have been there before this call
    job: NewJob | None = None  # as it was written, where created_at is known


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A worker process at its start."""

    worker_id: str  # the boot id, new with every start
    slot: str  # the place it fills, unique among live workers: the node name
    pipeline: str
    stage: str
    host: str
    pid: int
    slots: int  # stage runs it takes at a time
    pipeline_version: str
    pipeline_digest: str  # Pipeline.digest: it claims stage runs of no other file
    pid_space: str | None = None  # where that pid means something; None: not known
    pid_started: int | None = None  # when the process of that pid started, by its kernel
    heartbeat_s: float | None = None  # how often it renews its lease; None: not known


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The worker whose row is in a slot; whether it lives is for who asks to find out."""

    worker_id: str
    host: str
    pid: int
    pid_space: str | None
    pid_started: int | None
    renewed_at: float  # seconds since 1970 by the database's clock
    has_lease: bool
    heartbeat_s: float | None = None  # how often it renews; None: not known


class Claim(NamedTuple):
    """A stage run that is the worker's now, with all it takes to run it."""

    stage_run_id: int
    job_id: str
    stage: str
    attempt: int  # from 1
    pipeline: str
    request: Mapping[str, Any]
    media: Sequence[Mapping[str, Any]]  # {key, size, digest, media_type}, by number; first stages only
    seed: int
    upstream: Mapping[str, ObjectRef | bytes | None]  # input stage → its payload; None: it made none
    has_consumers: bool  # a later stage of this job takes this one's payload
    failures: Mapping[str, int]  # attempts that failed before this one, by retry class
    alone: bool  # nothing may run beside it in its worker: it may be what kills workers


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """An output to be recorded; its object is stored already."""

    name: str  # unique in the job
    media_type: str
    ref: ObjectRef


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An output as recorded."""

    name: str
    media_type: str
    ref: ObjectRef


@dataclass(frozen=True, slots=True)
class Completion:
    """An attempt that reached its end. Raises StageError for a result that is not JSON."""

    stage_run_id: int
    attempt: int
    worker_id: str
    payload: ObjectRef | None = None  # at most one of the two
    inline_payload: bytes | None = None
    payload_bytes: int = 0
    artifacts: Sequence[NewArtifact] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None  # why its tokens ended: "stop", "length"
    warnings: Sequence[Mapping[str, str]] = ()  # {code, message}: what the user should know of what it made
    result_json: str = field(init=False)

    def __post_init__(self) -> None:
        # Found here it fails one stage run; found in the transaction it would fail the whole group.
        try:
            object.__setattr__(self, "result_json", encode_json(dict(self.result)))
        except (TypeError, ValueError) as error:
            raise StageError(f"the stage's result is not JSON: {error}", field="result") from error


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that ended in an error."""

    stage_run_id: int
    attempt: int
    worker_id: str
    error: OmniJobsError


class Outcome(NamedTuple):
    """What became of a report about a stage run."""

    won: bool  # it was recorded (by this call, or by an earlier one whose answer was lost)
    hints: Sequence[Hint] = ()
    job_state: JobState | None = None  # None: there is no such stage run


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far an attempt is: ``done`` of ``total`` ``unit``; total None when unknown."""

    stage_run_id: int
    attempt: int
    done: int
    total: int | None
    unit: str
    text: str | None = None  # all the text so far


@dataclass(frozen=True, slots=True)
class RescueResult:
    """What a round of the rescuer did."""

    freed: int  # stage runs taken from workers that are gone
    hints: Sequence[Hint] = ()  # for what was freed, and for what waits unannounced
    expired: int = 0  # jobs whose time was over


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds after their job's end."""

    payloads_s: float  # of jobs that did not complete; those of completed ones are of no use to anybody
    inputs_s: float
    artifacts_s: float
    events_s: float  # since they were written
    jobs_s: float

    @classmethod
    def of(cls, settings: Settings) -> Retention:
        return cls(
            payloads_s=settings.keep_payloads_s,
            inputs_s=settings.keep_inputs_s,
            artifacts_s=settings.keep_artifacts_s,
            events_s=settings.keep_events_s,
            jobs_s=settings.keep_jobs_s,
        )

    @property
    def completed_s(self) -> float:
        """For how long after its end nothing goes of a job that completed, but its payloads, which go with it."""
        return min(self.inputs_s, self.artifacts_s, self.jobs_s)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a call of ``prune`` took: of how many jobs the payloads, inputs, artifacts; jobs whole; events."""

    looked_at: int = 0  # jobs that were due; 0: none is left
    payloads: int = 0
    inputs: int = 0
    artifacts: int = 0
    jobs: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class Garbage:
    """Objects to delete: ``what`` is a key, or ends with "/" and is the beginning of keys."""

    id: int
    what: str
