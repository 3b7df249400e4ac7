"""The plain, frozen values that :class:`omni_jobs.jobs.Jobs` takes and returns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from omni_jobs.database.tables import decode_json, encode_json
from omni_jobs.errors import OmniJobsError, StageError
from omni_jobs.identity import StageId
from omni_jobs.new_job import NewJob
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef
from omni_jobs.views import JobView, ProgressView

MOST_RESULT_BYTES = 256 << 20
"""The most bytes of a stage's result, because it stands in SQL, whose own limit would fail a whole transaction."""


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The result of a submit: its job, and the queues whose doorbells to ring."""

    job_id: str
    created: bool  # False: a job that was there has this idempotency key
    queues: Collection[str] = ()
    created_at: float | None = None  # seconds since 1970; None: the job may have been there before, or may be held
    job: NewJob | None = None  # as it was written, where created_at is known
    traceparent: str | None = None  # NewJob.traceparent of a job that was made


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The jobs that a list shows, or that many are changed of: those that match every field. None, or {}: any.

    states          those that the job may be in
    version         of its pipeline, as people name it
    stage           where the job stands: its stage run of this name is queued or running, or has failed
    metadata        names with values that its metadata have, all of them
    created_after   the time in its id, that of its admission, is this or later; seconds since 1970
    created_before  the same, earlier than this
    tenant          whose job it is
    except_tenants  whose job it is not
    """

    states: frozenset[JobState] | None = None
    pipeline: str | None = None
    version: str | None = None
    stage: str | None = None
    error_code: str | None = None
    metadata: Collection[tuple[str, str]] = ()
    created_after: float | None = None
    created_before: float | None = None
    tenant: str | None = None
    except_tenants: frozenset[str] = frozenset()


class Matches(NamedTuple):
    """The ids of jobs that match a filter, the newest first, and the cursor from which to look on; None: all are."""

    ids: Sequence[str]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A worker process, as it describes itself to ``Jobs.register_worker``."""

    worker_id: str  # the boot id, new with every start
    slot: str  # its Celery node name, which one live worker has at a time
    stage: StageId  # it claims this stage's runs, of this pipeline file and no other
    host: str
    pid: int
    slots: int  # the number of stage runs that it runs at a time
    pipeline_version: str
    pid_space: str | None = None  # boot and namespace of the pid; None: not known
    pid_started: int | None = None  # when the process of the pid started, in ticks since the boot; None: not known
    heartbeat_s: float = 1.0  # how often it renews its lease
    slots_for_high: int = 0  # of ``slots``, those kept for high jobs
    info: Mapping[str, Any] | None = None  # WorkerInfo as JSON; None: not known yet


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The worker that is recorded in a slot. It may be dead: a worker that wants the slot finds out."""

    worker_id: str
    host: str
    pid: int
    pid_space: str | None
    pid_started: int | None
    renewed_at: float  # seconds since 1970 by the database's clock
    has_lease: bool
    heartbeat_s: float  # how often it renews


class Wishes(NamedTuple):
    """What users wish of the stage runs that a worker runs."""

    unwanted: Sequence[int] = ()  # the ids of those that it must stop, because their job has ended or is to end
    watched: Mapping[int, float] = MappingProxyType({})  # the ids of those whose job is watched → since when


class Renewal(NamedTuple):
    """What a worker learns when it renews its lease."""

    wishes: Wishes = Wishes()
    is_paused: bool = False  # its stage is, or it is drained: it claims nothing until a renewal says otherwise


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot whose object is stored: the state of a stage run after some steps, where its next attempt goes on."""

    ref: ObjectRef
    steps_done: int
    attempt: int  # that took it
    before: Self | None = None  # the one before it, which is of use if this one is damaged; it has none itself

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its object and of that of the one before."""
        return (self.ref.key,) if self.before is None else (self.ref.key, self.before.ref.key)

    def to_json(self) -> dict[str, Any]:
        """Return what the stage run's row keeps: {key, size, digest, steps_done, attempt, before}."""
        before = {} if self.before is None else {"before": self.before.to_json()}
        return {**self.ref.model_dump(), "steps_done": self.steps_done, "attempt": self.attempt, **before}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the snapshot of what ``to_json`` made."""
        ref = ObjectRef.model_validate({name: fields[name] for name in ObjectRef.model_fields})
        before = fields.get("before")
        return cls(ref, fields["steps_done"], fields["attempt"], None if before is None else cls.of(before))


class Claim(NamedTuple):
    """A stage run that the worker has claimed, with the data to run it."""

    stage_run_id: int
    job_id: str
    stage: str
    attempt: int  # from 1
    pipeline: str
    request: Mapping[str, Any]
    media: Sequence[Mapping[str, Any]]  # {key, size, digest, media_type}, by number; first stages only
    seed: int
    upstream: Mapping[str, ObjectRef | bytes | None]  # the payload by input stage; None: that stage made none
    has_successors: bool  # a later stage of this job takes this one's payload
    alone: bool  # nothing may run beside it in its worker, because it may have killed others
    snapshot: StoredSnapshot | None = None  # the newest that an earlier attempt took: this one goes on from there
    is_high: bool = False  # its job's priority: it may take a slot that is kept for such
    watched_since: float | None = None  # since when its job is watched; None: it is not
    waited_s: float = 0.0  # how long it stood in the line before this claim, from when it was due
    traceparent: str | None = None  # NewJob.traceparent
    makers: Mapping[str, str] = MappingProxyType({})  # of a fork's payloads: the job that made each, by input stage


class Claims(NamedTuple):
    """What a claim gave, and whether to claim again."""

    claims: Sequence[Claim]  # in the order of their turns
    more: bool = False  # more stage runs may wait: claim again when there is room
    more_high: bool = False  # more stage runs of high jobs may wait: claim again also when only kept slots are free
    suspect_waits: bool = False  # a suspect is set apart for this worker: claim again once it is idle, not before
    outcomes: Sequence["Outcome"] = ()  # of the reports that came with the claim


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact whose object is stored: a completion records it, and a reader finds it."""

    name: str  # unique in the job
    media_type: str
    ref: ObjectRef


class StepSeconds(NamedTuple):
    """How many seconds an attempt had spent in each step when its end was reported; None: it did not come to it.

    The last of them is the step in which it ended: of an attempt that failed, it was not finished.
    """

    load_s: float
    run_s: float | None = None
    store_s: float | None = None

    def to_json(self) -> dict[str, float]:
        """Return what the rows keep: {load_s, run_s, store_s}, to 0.1 ms, without what is None."""
        steps = {"load_s": round(self.load_s, 4)}
        if self.run_s is not None:
            steps["run_s"] = round(self.run_s, 4)
        if self.store_s is not None:
            steps["store_s"] = round(self.store_s, 4)
        return steps


@dataclass(frozen=True, slots=True)
class Completion:
    """A worker's report that an attempt has succeeded. Raises StageError for a result that is not JSON or too large."""

    stage_run_id: int
    attempt: int
    worker_id: str
    payload: ObjectRef | None = None  # at most one of the two payloads is given
    inline_payload: bytes | None = None
    payload_bytes: int = 0
    artifacts: Sequence[StoredArtifact] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None  # why the model ended its tokens: "stop", "length"
    warnings: Sequence[Mapping[str, str]] = ()  # {code, message}: shown to the user with the job
    made: Mapping[str, float] = field(default_factory=dict)  # amounts by the fields of UsageView: tokens, pictures, …
    device_s: float = 0.0  # the attempt's share of the time in which the engine was busy, times its devices
    steps: StepSeconds | None = None
    result_json: str = field(init=False)

    def __post_init__(self) -> None:
        # An error here fails one stage run; in the transaction it would fail all completions of the batch.
        try:
            object.__setattr__(self, "result_json", encode_json(dict(self.result)))
        except (TypeError, ValueError) as error:
            raise StageError(f"the stage's result is not JSON: {error}", field="result") from error
        if len(self.result_json) > MOST_RESULT_BYTES:
            raise StageError(
                f"the stage's result is {len(self.result_json):,} bytes of JSON; at most {MOST_RESULT_BYTES:,} fit",
                field="result",
            )


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot that a worker's running attempt has stored."""

    stage_run_id: int
    attempt: int
    worker_id: str
    ref: ObjectRef
    steps_done: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's report that an attempt ended in an error."""

    stage_run_id: int
    attempt: int
    worker_id: str
    error: OmniJobsError
    device_s: float = 0.0
    steps: StepSeconds | None = None  # None: nobody knows, because its worker was lost


@dataclass(frozen=True, slots=True)
class Release:
    """A worker's report that it hands an attempt back, unfinished, which counts as no failure."""

    stage_run_id: int
    attempt: int
    worker_id: str
    device_s: float = 0.0
    steps: StepSeconds | None = None


Report = Completion | Failure | Release
"""A worker's report of how an attempt has ended."""


class Outcome(NamedTuple):
    """What became of a report."""

    won: bool  # it is recorded, now or by an earlier call whose answer was lost; nothing tells the latter of a Release
    queues: Collection[str] = ()  # whose doorbells to ring, for all reports of the call
    state: StageRunState | None = None  # the stage run's, after the report; None: there is no such stage run


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of an attempt: ``done`` of ``total`` ``unit``; ``total`` is None when it is not known."""

    stage_run_id: int
    attempt: int
    done: int
    total: int | None
    unit: str
    text: str | None = None  # the whole text until now; None as well where pieces of it are written
    picture: str | None = None  # the newest preview, a data URL
    resumed_at: int | None = None  # how much the snapshot had done from which the attempt went on; None: it began anew
    chars: int | None = None  # how many characters of the text are written in pieces; None: it is not
    load_s: float | None = None  # StepSeconds.load_s of the attempt


class KeptPayload(NamedTuple):
    """The payload that a stage run has left: in the store, in its row, or gone."""

    stage: str
    nbytes: int
    ref: ObjectRef | None  # where it is in the store
    inline: bytes | None  # its bytes, if they are few
    is_gone: bool
    taken_from: str | None  # the job that made it; None: this one


class TextPiece(NamedTuple):
    """A part of the text that an attempt makes, which begins with the character ``start``."""

    stage_run_id: int
    attempt: int
    start: int
    text: str


class WantedText(NamedTuple):
    """What a reader of an attempt's text asks for: what stands behind the characters that it has."""

    job_id: str
    stage_run_id: int
    attempt: int
    have: int


class RunGlance(NamedTuple):
    """A stage run as one who watches its job sees it."""

    id: int
    stage: str
    state: StageRunState
    attempt: int
    progress_json: str | None  # while it runs: what its worker reported last

    @property
    def progress(self) -> ProgressView | None:
        """What its worker reported last; None before that, and unless it runs."""
        return None if self.progress_json is None else ProgressView(**decode_json(self.progress_json))

    @property
    def chars(self) -> int | None:
        """How many characters of the text its worker has written in pieces; None of one that is not watched yet."""
        return None if self.progress_json is None else decode_json(self.progress_json).get("chars")


class Glance(NamedTuple):
    """A job as one who watches it sees it."""

    state: JobState
    runs: tuple[RunGlance, ...] = ()  # in the pipeline's order; none unless they were asked for


class VideoJob(NamedTuple):
    """A job that makes a video."""

    job: JobView
    request: Mapping[str, Any] | None  # as it was admitted; None: it is too long to be read with the job
    run_s: Mapping[str, float] = MappingProxyType({})  # how long stage runs took lately, in the mean, by stage


class VideoPage(NamedTuple):
    """A page of the list of the jobs that make a video."""

    jobs: Sequence[VideoJob]
    has_more: bool


class Change(NamedTuple):
    """A transition that was committed: of a stage run to this state, or of a job if it names no stage run."""

    job_id: str
    state: JobState | StageRunState
    stage_run_id: int | None = None
    stage: str | None = None
    attempt: int | None = None
    worker: str | None = None  # that ran the attempt
    error: Mapping[str, Any] | None = None  # OmniJobsError.to_dict, of an attempt or a job that ended in one
    traceparent: str | None = None  # NewJob.traceparent


@dataclass(frozen=True, slots=True)
class RescueResult:
    """The result of ``Jobs.rescue``, one round of the rescuer."""

    freed: int  # stage runs taken from workers that are gone
    queues: Collection[str] = ()  # whose doorbells to ring, for the freed stage runs and the jobs that were let in
    expired: int = 0  # jobs stopped because their time was over


class PruneResult(NamedTuple):
    """What one call of ``Jobs.prune`` did: the jobs that lost each kind of data, deleted jobs, and deleted events."""

    checked: int = 0  # jobs that were due; 0: none is left
    payloads: int = 0
    inputs: int = 0
    artifacts: int = 0
    jobs: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class Garbage:
    """The note that objects are to be deleted: ``what`` is a key, or a prefix of keys, which ends with "/"."""

    id: int
    what: str
    owner: str  # the job that let go of them; of an object that it shared, another one than the key's
