"""The tables. What each column means and when it changes; :mod:`omni_jobs.jobs` is the only writer.

Times are seconds since 1970 UTC by the database's clock, as floats: both databases
compare and index them alike. JSON is ASCII text: every string Python can hold comes
back as it was, NUL characters and lone surrogates too, which PostgreSQL's own JSON
types and text would refuse.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.elements import ColumnElement

from omni_jobs.states import JobState, StageRunState

__all__ = [
    "ArtifactRow",
    "AttemptErrorRow",
    "Base",
    "JobRow",
    "JsonText",
    "StageRunRow",
    "WorkerRow",
    "state_is",
    "state_seen",
]


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class JsonText(TypeDecorator[Any]):
    """JSON as ASCII text. Raises ValueError for NaN, infinities and what JSON does not know."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else _encode(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


Seconds = Double  # since 1970, UTC
Name = String(100)
_BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in INTEGER PRIMARY KEY


def state_is(column: Any, state: JobState | StageRunState) -> ColumnElement[bool]:
    """``column = 'state'`` with the state written out: a partial index serves no bound parameter."""
    return column == literal_column(f"'{state.value}'")  # type: ignore[no-any-return]


def state_seen(column: Any, state: JobState | StageRunState) -> ColumnElement[bool]:
    """``state_is`` as a guard on rows found by their ids, of no use to any index.

    PostgreSQL's statistics lag behind a queue: thinking that few rows are in the state, it
    would walk the whole backlog in the state's index to find the ones named.
    """
    return column.concat("") == literal_column(f"'{state.value}'")  # type: ignore[no-any-return]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class JobRow(Base):
    """One user submission. Its row lock orders all transitions of its stage runs."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("idempotency_key"),
        Index(None, "state", "id"),
        Index(None, "pipeline", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # "job-" + UUIDv7: sorts by time
    state: Mapped[str] = mapped_column(String(16))  # JobState
    pipeline: Mapped[str] = mapped_column(Name)
    pipeline_version: Mapped[str] = mapped_column(String(20))
    pipeline_digest: Mapped[str] = mapped_column(String(64))  # of the stage config it was submitted with
    modalities: Mapped[Any] = mapped_column(JsonText)  # the outputs asked for
    request: Mapped[Any] = mapped_column(JsonText)  # admitted; media by number
    request_digest: Mapped[str] = mapped_column(String(80))  # tells a repeated submit from another job
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    media: Mapped[Any] = mapped_column(JsonText)  # [{key, size, digest, media_type}], by number
    # Named for what a later request may call it; `metadata` is taken by SQLAlchemy.
    user_metadata: Mapped[Any] = mapped_column("metadata", JsonText)
    seed: Mapped[int] = mapped_column(BigInteger)
    error: Mapped[Any | None] = mapped_column(JsonText)  # set with failed: that of the stage run that failed
    created_at: Mapped[float] = mapped_column(Seconds)
    started_at: Mapped[float | None] = mapped_column(Seconds)  # set with in_progress: the first claim
    finished_at: Mapped[float | None] = mapped_column(Seconds)  # set with the final state


class StageRunRow(Base):
    """One stage of one job. In state queued the row is the outbox: hints only point at it."""

    __tablename__ = "stage_runs"
    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        # Claimable work of a stage, the longest unannounced first.
        Index(
            "ix_stage_runs_queued",
            "pipeline",
            "stage",
            "announce_at",
            sqlite_where=literal_column("state = 'queued'"),
            postgresql_where=literal_column("state = 'queued'"),
        ),
        # What a worker holds.
        Index(
            "ix_stage_runs_running",
            "owner",
            "pipeline",
            "stage",
            sqlite_where=literal_column("state = 'running'"),
            postgresql_where=literal_column("state = 'running'"),
        ),
        # Only counted.
        Index(
            "ix_stage_runs_pending",
            "pipeline",
            "stage",
            sqlite_where=literal_column("state = 'pending'"),
            postgresql_where=literal_column("state = 'pending'"),
        ),
    )

    id: Mapped[int] = mapped_column(_BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int]  # in the job, every stage after its inputs
    pipeline: Mapped[str] = mapped_column(Name)
    stage: Mapped[str] = mapped_column(Name)
    queue: Mapped[str] = mapped_column(String(200))  # where its hints go
    inputs: Mapped[Any] = mapped_column(JsonText)  # names of the job's stages whose payloads it takes
    capture: Mapped[bool]  # a later stage of this job takes its payload
    max_attempts: Mapped[int]  # failures it may have, the last included
    state: Mapped[str] = mapped_column(String(16))  # StageRunState
    reason: Mapped[str | None] = mapped_column(String(40))  # why it waits, when that is not its turn
    attempt: Mapped[int] = mapped_column(Integer, default=0)  # the fencing number: each claim adds one, nothing else
    failures: Mapped[int] = mapped_column(Integer, default=0)  # attempts that ended in an error or with their worker
    owner: Mapped[str | None] = mapped_column(String(200))  # the worker of the last claim; None when handed back
    due: Mapped[float | None] = mapped_column(Seconds)  # queued: not claimable before
    announce_at: Mapped[float | None] = mapped_column(Seconds)  # queued: the rescuer hints it again from here on
    queued_at: Mapped[float | None] = mapped_column(Seconds)  # its inputs were there; kept over retries
    started_at: Mapped[float | None] = mapped_column(Seconds)  # the last claim
    finished_at: Mapped[float | None] = mapped_column(Seconds)  # set with the final state
    progress: Mapped[Any | None] = mapped_column(JsonText)  # {done, total, unit, text}; cleared by a claim
    result: Mapped[Any | None] = mapped_column(JsonText)  # set with succeeded: its part of the job's result
    payload_ref: Mapped[Any | None] = mapped_column(JsonText)  # ObjectRef, or
    payload_inline: Mapped[bytes | None] = mapped_column(LargeBinary)  # the bytes, when they are few
    payload_bytes: Mapped[int | None] = mapped_column(BigInteger)


class AttemptErrorRow(Base):
    """How one attempt failed. Written once, with the transition it explains."""

    __tablename__ = "attempt_errors"

    stage_run_id: Mapped[int] = mapped_column(
        _BigId, ForeignKey("stage_runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str] = mapped_column(String(200))
    error: Mapped[Any] = mapped_column(JsonText)  # OmniJobsError.to_dict()
    at: Mapped[float] = mapped_column(Seconds)


class ArtifactRow(Base):
    """An output the user may fetch. Written with the completion of its stage run."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    stage_run_id: Mapped[int] = mapped_column(ForeignKey("stage_runs.id", ondelete="CASCADE"), index=True)
    media_type: Mapped[str] = mapped_column(String(100))
    ref: Mapped[Any] = mapped_column(JsonText)  # ObjectRef
    created_at: Mapped[float] = mapped_column(Seconds)


class WorkerRow(Base):
    """A live worker and its lease, which covers every stage run it holds. Gone when retired or expired."""

    __tablename__ = "workers"
    __table_args__ = (UniqueConstraint("slot"), Index(None, "lease_until"))

    id: Mapped[str] = mapped_column(String(200), primary_key=True)  # the boot id: new with every start
    slot: Mapped[str] = mapped_column(String(200))  # the place it fills; a newcomer there replaces it
    pipeline: Mapped[str] = mapped_column(Name)
    stage: Mapped[str] = mapped_column(Name)
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    slots: Mapped[int]  # stage runs it takes at a time
    started_at: Mapped[float] = mapped_column(Seconds)
    renewed_at: Mapped[float] = mapped_column(Seconds)
    lease_until: Mapped[float] = mapped_column(Seconds)
