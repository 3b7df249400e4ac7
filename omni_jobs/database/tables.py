"""The tables. Comments say what a column means, and when it changes. :mod:`omni_jobs.jobs` is the only writer.

Times are seconds since 1970 UTC by the database's clock, as floats, because both databases compare and index those
alike. JSON is ASCII text: so every string that Python can hold comes back as it was, with NUL characters and lone
surrogates, which PostgreSQL's own text and JSON types refuse.
"""

import hashlib
import json
from typing import Any

import orjson
from sqlalchemy import ForeignKey, Index, MetaData, UniqueConstraint, literal_column, text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import BigInteger, Double, Integer, LargeBinary, String, Text, TypeDecorator

from omni_jobs.states import JobState, StageRunState

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_ORJSON_LIMIT = 16_384  # characters; for each of them orjson takes about 12 bytes while it reads
_encode_exactly = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_json(value: Any) -> str:
    """Return ``value`` as the ASCII text that the columns keep.

    Raises ValueError for NaN and infinities, and TypeError for a type that JSON does not know. Integers must
    have 64 bits at most: ``decode_json`` returns larger ones as floats.
    """
    try:
        text = orjson.dumps(value, option=_PLAIN)
    except TypeError:  # also for lone surrogates, which the columns can hold
        return _encode_exactly(value)
    # orjson writes text as UTF-8, and NaN as null.
    return text.decode("ascii") if text.isascii() and text.find(b"null") < 0 else _encode_exactly(value)


def decode_json(text: str) -> Any:
    """Return the value of a text that ``encode_json`` made."""
    if len(text) > _ORJSON_LIMIT:
        return json.loads(text)
    try:
        return orjson.loads(text)
    except ValueError:  # a lone surrogate
        return json.loads(text)


def label_of(name: str, value: str) -> str:
    """Return the digest by which a name and value of metadata are found: 128 bits in hex.

    A digest, because a value may be longer than an index takes, and hold characters that PostgreSQL's text refuses.
    """
    return hashlib.blake2b(_encode_exactly([name, value]).encode("ascii"), digest_size=16).hexdigest()


class JsonText(TypeDecorator[Any]):
    """The type of columns that keep JSON: ``encode_json`` makes their text, ``decode_json`` reads it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else encode_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else decode_json(value)


Seconds = Double  # since 1970, UTC
RETRY_TOKEN = "wish"  # noqa: S105 — the key in a retry's event by which a retry knows its own commit; no password
NameType = String(100)
_BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in INTEGER PRIMARY KEY


def state_is(column: Any, state: JobState | StageRunState) -> ColumnElement[bool]:
    """Return the SQL ``column = 'state'``. The state is no parameter, because then no partial index would serve it."""
    return column == literal(state)  # type: ignore[no-any-return]


def literal(state: JobState | StageRunState) -> ColumnElement[str]:
    """Return a state as an SQL literal, such as ``'queued'``."""
    return literal_column(f"'{state.value}'")


def state_seen(column: Any, state: JobState | StageRunState) -> ColumnElement[bool]:
    """Return the SQL ``column = 'state'`` in a form that no index serves: a guard on rows that are found by their ids.

    PostgreSQL's statistics lag behind a queue. By them few rows are in the state, so that for ``state_is`` it would
    scan the whole backlog in the state's index instead of finding the rows by their ids.
    """
    return column.concat(literal_column("''")) == literal(state)  # type: ignore[no-any-return]


class Base(DeclarativeBase):
    """SQLAlchemy's base class of all tables; a test compares its metadata with the migrations."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def _index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


MAKES_VIDEO = """CASE WHEN replace(modalities, '"video"', '') <> modalities THEN 1 END = 1"""
"""The SQL condition that a job makes a video, for a tenant's jobs. A query has to write it as the index does.

It is an equation, because of inequations PostgreSQL assumes that they hold for nearly all rows, and walks through all.
"""
MAKES_VIDEO_FOR_ALL = MAKES_VIDEO.replace("<> modalities", "<> modalities || ''")
"""The same for the jobs of all. It is written otherwise, so that a tenant's list never walks through others' videos."""


class JobRow(Base):
    """The row of a job. Its lock orders all transitions of the job's stage runs."""

    __tablename__ = "jobs"
    __table_args__ = (
        _index(
            "uq_jobs_idempotency_key_tenant",  # the key first, so that no index of a tenant's jobs serves it instead
            "idempotency_key",
            "tenant",
            where="idempotency_key IS NOT NULL",
            unique=True,
        ),
        # Lists of all tenants' jobs, and those of one tenant's, which read nothing of the others.
        Index(None, "state", "pipeline", "id"),
        Index(None, "tenant", "state", "id", "pipeline"),
        # The state comes first, because SQLite would take the index above and read every row.
        _index("ix_jobs_backlog", "state", "pipeline", "tenant", where="state = 'queued'"),
        _index("ix_jobs_deadline", "deadline", where="finished_at IS NULL AND deadline IS NOT NULL"),
        _index("ix_jobs_error_code", "error_code", "id", where="error_code IS NOT NULL"),
        _index("ix_jobs_tenant_error_code", "tenant", "error_code", "id", where="error_code IS NOT NULL"),
        _index("ix_jobs_prune_at", "prune_at", where="prune_at IS NOT NULL"),
        # The jobs that make a video, of which OpenAI's API has a list.
        _index("ix_jobs_video", "id", where=MAKES_VIDEO_FOR_ALL),
        _index("ix_jobs_tenant_video", "tenant", "id", where=MAKES_VIDEO),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # "job-" + UUIDv7: sorts by time
    state: Mapped[str] = mapped_column(String(16))  # JobState
    pipeline: Mapped[str] = mapped_column(NameType)
    pipeline_version: Mapped[str] = mapped_column(String(20))
    pipeline_digest: Mapped[str] = mapped_column(String(64))  # Pipeline.digest of the file it was submitted with
    modalities: Mapped[Any] = mapped_column(JsonText)  # the outputs asked for
    request: Mapped[Any] = mapped_column(JsonText)  # admitted; media by number
    request_digest: Mapped[str] = mapped_column(String(80))  # equal for the same request sent again
    idempotency_key: Mapped[str | None] = mapped_column(String(255))  # one job of a tenant has it
    media: Mapped[Any] = mapped_column(JsonText)  # [{key, size, digest, media_type}], by number
    # The user's "metadata"; SQLAlchemy keeps the bare name for itself.
    user_metadata: Mapped[Any] = mapped_column("metadata", JsonText)
    seed: Mapped[int] = mapped_column(BigInteger)
    tenant: Mapped[str] = mapped_column(String(64))
    priority: Mapped[str] = mapped_column(String(10))  # Priority, within its tenant
    cost: Mapped[float] = mapped_column(Double)  # of a turn; 1: a plain job's
    error: Mapped[Any | None] = mapped_column(JsonText)  # why it failed or expired
    error_code: Mapped[str | None] = mapped_column(String(40))  # the code of that error, for searches
    ending: Mapped[str | None] = mapped_column(String(16))  # cancelling: the JobState it will end in
    deadline: Mapped[float | None] = mapped_column(Seconds)  # when it expires unless it has ended
    retries: Mapped[int] = mapped_column(Integer, default=0)  # how often its user has retried it after its end
    created_at: Mapped[float] = mapped_column(Seconds)
    started_at: Mapped[float | None] = mapped_column(Seconds)  # set with in_progress: the first claim
    finished_at: Mapped[float | None] = mapped_column(Seconds)  # set with the final state
    prune_at: Mapped[float | None] = mapped_column(Seconds)  # final: when the pruner checks it next
    payloads_gone: Mapped[bool] = mapped_column(default=False)  # pruned; the same for the next two
    inputs_gone: Mapped[bool] = mapped_column(default=False)
    artifacts_gone: Mapped[bool] = mapped_column(default=False)


_ORDER = ("pipeline", "stage", "pipeline_digest", "turn")


class StageRunRow(Base):
    """The row of a stage run. In state queued it stands in its stage's line, by its turn."""

    __tablename__ = "stage_runs"
    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        # The queued stage runs of a stage and a pipeline file, in the order in which they are claimed.
        _index("ix_stage_runs_queued", *_ORDER, "id", where="state = 'queued'"),
        _index("ix_stage_runs_apart", *_ORDER, where="state = 'queued' AND apart IS NOT NULL"),
        # Those of high jobs. The state is written so that no query for these can be served by the index of all.
        _index("ix_stage_runs_high", *_ORDER, "id", where="is_high AND state || '' = 'queued'"),
        # The stage runs that a worker runs.
        _index("ix_stage_runs_running", "owner", "pipeline", "stage", where="state = 'running'"),
        # Pending stage runs, which are only counted.
        _index("ix_stage_runs_pending_files", "pipeline", "stage", "pipeline_digest", where="state = 'pending'"),
        _index(
            "ix_stage_runs_queue_deadline", "queue_deadline", where="state = 'queued' AND queue_deadline IS NOT NULL"
        ),
    )

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int]  # in the job; every stage comes after its inputs
    pipeline: Mapped[str] = mapped_column(NameType)
    stage: Mapped[str] = mapped_column(NameType)
    pipeline_digest: Mapped[str] = mapped_column(String(64))  # JobRow.pipeline_digest
    queue: Mapped[str] = mapped_column(String(200))  # where its doorbells go
    is_high: Mapped[bool]  # its job's priority: it may take a kept slot
    turn: Mapped[int] = mapped_column(BigInteger)  # its job's: the lowest is claimed first
    inputs: Mapped[Any] = mapped_column(JsonText)  # the names of the job's stages whose payloads it takes
    has_successors: Mapped[bool]  # a later stage of this job takes its payload
    retries: Mapped[Any | None] = mapped_column(JsonText)  # RetryLimits; None: the defaults
    queue_limit_s: Mapped[float | None] = mapped_column(Double)  # how long it may wait to be claimed
    state: Mapped[str] = mapped_column(String(16))  # StageRunState
    reason: Mapped[str | None] = mapped_column(String(40))  # why it waits, if not for its turn: retry_backoff, quota
    attempt: Mapped[int] = mapped_column(Integer, default=0)  # the fencing number: each claim adds one, nothing else
    failures: Mapped[Any | None] = mapped_column(JsonText)  # {retry class or "other": attempts that ended so}
    owner: Mapped[str | None] = mapped_column(String(200))  # the worker of the last claim; None when handed back
    # None: it may run beside others. Else it is a suspect: the id of the worker that waits to run it alone, or "".
    apart: Mapped[str | None] = mapped_column(String(200))
    due: Mapped[float | None] = mapped_column(Seconds)  # queued: not claimable before
    queue_deadline: Mapped[float | None] = mapped_column(Seconds)  # queued: when its job expires
    queued_at: Mapped[float | None] = mapped_column(Seconds)  # when its inputs were there; kept over attempts
    started_at: Mapped[float | None] = mapped_column(Seconds)  # when it was claimed last
    finished_at: Mapped[float | None] = mapped_column(Seconds)  # set with the final state
    progress: Mapped[Any | None] = mapped_column(JsonText)  # {done, total, unit, text}; cleared by a claim
    result: Mapped[Any | None] = mapped_column(JsonText)  # set with succeeded: its part of the job's result
    payload_ref: Mapped[Any | None] = mapped_column(JsonText)  # the payload's ObjectRef, or
    payload_inline: Mapped[bytes | None] = mapped_column(LargeBinary)  # its bytes, if they are few
    payload_bytes: Mapped[int | None] = mapped_column(BigInteger)
    payload_gone: Mapped[bool] = mapped_column(default=False)  # deleted, because no stage needed it any more
    taken_from: Mapped[str | None] = mapped_column(String(40))  # the job that made the payload; None: its own
    finish_reason: Mapped[str | None] = mapped_column(String(40))  # set with succeeded: why the model ended its tokens
    warnings: Mapped[Any | None] = mapped_column(JsonText)  # set with succeeded: [{code, message}]; None: none
    # StoredSnapshot.to_json: where the next attempt goes on. Set while it runs, kept over attempts, gone with its end.
    snapshot: Mapped[Any | None] = mapped_column(JsonText)
    # {name of UsageView: amount}: of all attempts that have ended, also before a retry. Written by each end.
    usage: Mapped[Any | None] = mapped_column(JsonText)
    steps: Mapped[Any | None] = mapped_column(JsonText)  # StepSeconds of the attempt with which it ended; None: unknown


class AttemptErrorRow(Base):
    """The row of an attempt's error. Written once, with the transition that it explains."""

    __tablename__ = "attempt_errors"
    __table_args__ = (
        Index(None, "fingerprint", "at"),
        # The kinds of a time, of all jobs and of a tenant's.
        Index(None, "at", "fingerprint"),
        Index(None, "tenant", "at", "fingerprint"),
    )

    stage_run_id: Mapped[int] = mapped_column(
        _BigId, ForeignKey("stage_runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str] = mapped_column(String(200))
    error: Mapped[Any] = mapped_column(JsonText)  # OmniJobsError.to_dict(), the attempt's start and its StepSeconds
    at: Mapped[float] = mapped_column(Seconds)
    fingerprint: Mapped[str | None] = mapped_column(String(32))  # equal for errors of a kind; None: of an older build
    tenant: Mapped[str | None] = mapped_column(String(64))  # the job's; None: of an older build


class ArtifactRow(Base):
    """The row of an artifact. Written with the completion of its stage run."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    stage_run_id: Mapped[int] = mapped_column(ForeignKey("stage_runs.id", ondelete="CASCADE"), index=True)
    media_type: Mapped[str] = mapped_column(String(100))
    ref: Mapped[Any] = mapped_column(JsonText)  # ObjectRef
    created_at: Mapped[float] = mapped_column(Seconds)


class JobLabelRow(Base):
    """The row of one name and value of a job's metadata, by which lists find the job. Written by its submit.

    The key begins with what all queries know. The tenant follows, so that none reads what others' jobs have alike.
    """

    __tablename__ = "job_labels"
    __table_args__ = ({"sqlite_with_rowid": False},)

    label: Mapped[str] = mapped_column(String(32), primary_key=True)  # label_of(name, value)
    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)  # the job's
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, index=True)


class KeepingJobRow(Base):
    """The row of a job that keeps its payloads: no end of a stage run or of the job drops them, only time does.

    As of forks and shared objects, a foreign key would cost more than the rows, which go with their job.
    """

    __tablename__ = "keeping_jobs"

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)


class TracedJobRow(Base):
    """The trace of a job, beside its row for the reason of ``KeepingJobRow``: most have none."""

    __tablename__ = "traced_jobs"

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    traceparent: Mapped[str] = mapped_column(String(55))  # the span of its submit, or its client's


class ForkRow(Base):
    """The row of a fork: the job whose earlier stages it took over, which may be deleted since."""

    __tablename__ = "forks"

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    origin: Mapped[str] = mapped_column(String(40))


class SharedObjectRow(Base):
    """The row of a fork's share in an object of another job: a payload or an artifact. Written with the fork.

    It only tells where to look: the object is kept as long as a stage run or an artifact of either job refers to it.
    """

    __tablename__ = "shared_objects"

    key: Mapped[str] = mapped_column(String(240), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(40), primary_key=True, index=True)  # the fork


class EventRow(Base):
    """The row of an event: a job is cancelling, has ended or was retried. Pruned after a time or with the job."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id"), Index(None, "at"), {"sqlite_autoincrement": True})

    # It never comes twice. It orders nothing: transactions that come later may be seen first, and clocks may go back.
    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(String(40))  # no foreign key, because its check costs more than the row
    number: Mapped[int]  # within the job, from 1; grows, also after a pruning
    type: Mapped[str] = mapped_column(String(40))  # job.completed, job.retried, …
    data: Mapped[Any] = mapped_column(JsonText)  # of a retry also RETRY_TOKEN
    at: Mapped[float] = mapped_column(Seconds)


class WatchedJobRow(Base):
    """The row of a job whose events are streamed. Its workers write its text piece by piece, and report more often.

    Whoever streams the events moves ``until`` on. Removed some time after it is over, with the pieces.
    """

    __tablename__ = "watched_jobs"

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    since: Mapped[float] = mapped_column(Seconds)  # its pieces begin anew with each row
    until: Mapped[float] = mapped_column(Seconds, index=True)


class AbandonedJobRow(Base):
    """The row of a job whose client has left. Removed once somebody asks for the job, or it is cancelled."""

    __tablename__ = "abandoned_jobs"

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[float] = mapped_column(Seconds, index=True)


class FirstTryRow(Base):
    """The row of a request without a key whose client may send it again. Removed a quarter of an hour later."""

    __tablename__ = "first_tries"
    __table_args__ = (Index(None, "request", "tenant"),)

    key: Mapped[str] = mapped_column(String(64), primary_key=True)  # the idempotency key under which it submits
    tenant: Mapped[str] = mapped_column(String(64))
    request: Mapped[str] = mapped_column(String(71))  # the digest of its path and body
    at: Mapped[float] = mapped_column(Seconds, index=True)
    tries: Mapped[int]  # the number of the newest repetition that found this row, or wrote it
    is_lost: Mapped[bool]  # its client got no answer, or an error


class TextPieceRow(Base):
    """The row of a piece of the text that an attempt makes while its job is watched: characters [start, stop)."""

    __tablename__ = "text_pieces"

    job_id: Mapped[str] = mapped_column(ForeignKey("watched_jobs.job_id", ondelete="CASCADE"), primary_key=True)
    stage_run_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    start: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stop: Mapped[int]
    text: Mapped[Any] = mapped_column(JsonText)


class GarbageRow(Base):
    """The note that objects are to be deleted. Written with the change that made them useless, removed after them."""

    __tablename__ = "garbage"
    __table_args__ = (Index(None, "owner"),)

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    owner: Mapped[str] = mapped_column(String(40))  # the id of the job, which may be deleted, or of another owner
    what: Mapped[str] = mapped_column(String(512))  # a key, or a prefix of keys, which ends with "/"


class WorkerRow(Base):
    """The row of a worker: its slot and its lease. Removed when the worker retires or its lease has run out."""

    __tablename__ = "workers"
    __table_args__ = (UniqueConstraint("slot"), Index(None, "lease_until"))

    id: Mapped[str] = mapped_column(String(200), primary_key=True)  # the boot id, new with every start
    slot: Mapped[str] = mapped_column(String(200))  # its Celery node name, which one live worker has at a time
    pipeline: Mapped[str] = mapped_column(NameType)
    stage: Mapped[str] = mapped_column(NameType)
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    slots: Mapped[int]  # the number of stage runs that it runs at a time
    slots_for_high: Mapped[int]  # of ``slots``, those kept for high jobs
    pipeline_version: Mapped[str] = mapped_column(String(20))
    pipeline_digest: Mapped[str] = mapped_column(String(64))  # Pipeline.digest
    started_at: Mapped[float] = mapped_column(Seconds)
    renewed_at: Mapped[float] = mapped_column(Seconds)
    lease_until: Mapped[float] = mapped_column(Seconds)
    pid_space: Mapped[str | None] = mapped_column(String(100))  # boot and namespace of its pid; None: not known
    pid_started: Mapped[int | None] = mapped_column(BigInteger)  # tells its process from a later one with the same pid
    loading: Mapped[bool]  # true while it loads its engine: it holds its slot and claims nothing
    heartbeat_s: Mapped[float] = mapped_column(Double)  # how often it renews
    # The highest that it, or who had its slot before, has claimed when no lower one waited; None: none yet.
    turn: Mapped[int | None] = mapped_column(BigInteger)
    # How long a stage run took it lately, in the mean, from claim to end; None: none has ended in its slot yet.
    run_s: Mapped[float | None] = mapped_column(Double)
    drained_at: Mapped[float | None] = mapped_column(Seconds)  # since then it claims nothing; None: it is not drained
    info: Mapped[Any | None] = mapped_column(JsonText)  # WorkerInfo: its device and versions, once its engine is known
    # WorkerStats.to_json(): what it has counted since its start. Changed with a renewal; None: nothing yet.
    stats: Mapped[Any | None] = mapped_column(JsonText)


class PausedStageRow(Base):
    """The row of a stage of which no worker claims anything. Written by a pause, removed by a resume."""

    __tablename__ = "paused_stages"

    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    stage: Mapped[str] = mapped_column(NameType, primary_key=True)
    at: Mapped[float] = mapped_column(Seconds)  # of the first pause, if several administrators paused it


class EstimateRow(Base):
    """The row of an estimate that was made for a waiting stage run, and of what became of it. Only the newest stay.

    It has no foreign key, because the check of one costs more than the row.
    """

    __tablename__ = "estimates"
    __table_args__ = (Index(None, "pipeline", "stage", "id"), UniqueConstraint("stage_run_id"))

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)  # in the order in which they were made
    stage_run_id: Mapped[int] = mapped_column(_BigId)
    pipeline: Mapped[str] = mapped_column(NameType)
    stage: Mapped[str] = mapped_column(NameType)
    at: Mapped[float] = mapped_column(Seconds)
    point_s: Mapped[float] = mapped_column(Double)  # the expected wait, from which the interval was made
    low_s: Mapped[float] = mapped_column(Double)
    high_s: Mapped[float] = mapped_column(Double)
    waited_s: Mapped[float | None] = mapped_column(Double)  # from ``at`` to its claim; None: it still waits


class CalibrationRow(Base):
    """The row of a stage's calibration. Changed by the rescuer; ``omni_jobs.jobs.read.estimates`` explains it."""

    __tablename__ = "calibrations"

    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    stage: Mapped[str] = mapped_column(NameType, primary_key=True)
    low_factor: Mapped[float] = mapped_column(Double)
    high_factor: Mapped[float] = mapped_column(Double)
    low_tail: Mapped[float] = mapped_column(Double)
    high_tail: Mapped[float] = mapped_column(Double)


class TenantRow(Base):
    """The row of a tenant that an operator has made. A tenant without a row has weight 1 and the settings' limits."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    weight: Mapped[float] = mapped_column(Double, server_default=text("1"))  # its share beside other tenants' weights
    limits: Mapped[Any] = mapped_column(JsonText, server_default=text("'{}'"))  # {limit: number}; those left out: none
    created_at: Mapped[float] = mapped_column(Seconds)


class ApiKeyRow(Base):
    """The row of an API key. The key itself is nowhere; who presents it is known by its digest."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name", ondelete="CASCADE"), index=True)
    name: Mapped[str | None] = mapped_column(NameType)  # what its maker calls it
    scopes: Mapped[Any] = mapped_column(JsonText)  # ["submit", …]
    hint: Mapped[str] = mapped_column(String(20))  # the key's first characters, by which its owner knows it again
    digest: Mapped[str] = mapped_column(String(64), unique=True)  # SHA-256 of the key, in hex
    created_at: Mapped[float] = mapped_column(Seconds)
    expires_at: Mapped[float | None] = mapped_column(Seconds)  # refused from then on; None: never
    revoked_at: Mapped[float | None] = mapped_column(Seconds)  # refused since then
    used_at: Mapped[float | None] = mapped_column(Seconds)  # last, to the hour


class SessionRow(Base):
    """The row of a browser's session of the dashboard. Its id is nowhere; the browser that sends it has the session.

    It counts while its key does: a key that is revoked, expired or deleted with its tenant ends its sessions.
    """

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "key_id", "created_at"),)

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256 of its id, in hex
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"))  # with which it was begun
    created_at: Mapped[float] = mapped_column(Seconds)
    ends_at: Mapped[float] = mapped_column(Seconds, index=True)  # refused from then on


class WriteCheckRow(Base):
    """The one row that readiness checks write, to know whether writes work. Nobody reads it."""

    __tablename__ = "write_checks"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(Seconds)  # of the last check


# What tenants use up: turns, room in quotas, stored bytes.


class TurnRow(Base):
    """The row of a tenant's last turns in a pipeline (``omni_jobs.jobs.order.turns``). Changed by each submit."""

    __tablename__ = "turns"

    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    high: Mapped[int] = mapped_column(BigInteger)
    normal: Mapped[int] = mapped_column(BigInteger)
    low: Mapped[int] = mapped_column(BigInteger)


class QuotaJobRow(Base):
    """The row of a job that counts against its tenant's limit ``running_jobs``. Removed with the job's end.

    Written by the submit or the retry of a tenant that has the limit; ``omni_jobs.jobs.order.quota`` explains it.
    """

    __tablename__ = "quota_jobs"
    __table_args__ = (Index(None, "tenant", "is_let_in", "turn", "job_id"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    turn: Mapped[int] = mapped_column(BigInteger)  # by which it is let in, among its tenant's jobs alone
    cost: Mapped[float] = mapped_column(Double)  # JobRow.cost
    is_let_in: Mapped[bool]  # into the stages' lines; false: it is held


class QuotaTurnRow(Base):
    """The row of the last turns that a tenant's jobs were given as its quota let them in to a pipeline.

    That of pipeline "" holds the tenant's order of being let in. Changed under the lock of the tenant's row;
    ``omni_jobs.jobs.order.quota`` explains it.
    """

    __tablename__ = "quota_turns"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    high: Mapped[int] = mapped_column(BigInteger)
    normal: Mapped[int] = mapped_column(BigInteger)
    low: Mapped[int] = mapped_column(BigInteger)


class StoredBytesRow(Base):
    """The row of a part of what a tenant keeps stored; ``omni_jobs.jobs.keep.stored_bytes`` explains it.

    A tenant's bytes are the sum over its rows. There are several, so that transactions need not wait for each other.
    """

    __tablename__ = "stored_bytes"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    part: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    bytes: Mapped[int] = mapped_column(BigInteger)  # of one part it may be below 0


Base.registry.configure()  # all rows, as the module is loaded: else the first query of a process does it
