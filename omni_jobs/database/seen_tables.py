"""The tables of what is seen over time: samples of stages, engines that are down, versions of pipelines, usage by day,
actions, the audit; the holds of backups; and the oldest build.

As in ``tables``.
"""

from typing import Any, Final

from sqlalchemy import Index, MetaData
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Double, Integer, String

from omni_jobs.database.tables import Base, JsonText, NameType, Seconds


class StageSampleRow(Base):
    """The row of a sample: what a stage's workers counted in ``step_s`` seconds from ``at``, and how it stood.

    Written by the sampler, which deletes it after a day (10 s) or 30 days (5 minutes, 2 hours).
    """

    __tablename__ = "stage_samples"
    __table_args__ = (Index(None, "step_s", "at"),)

    step_s: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)  # 10, 300 or 7200
    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    stage: Mapped[str] = mapped_column(NameType, primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)  # since 1970, UTC
    span_s: Mapped[float] = mapped_column(Double)  # the time in which the counts were made
    queued: Mapped[float] = mapped_column(Double)  # this and the next five: StageStanding, in the mean over the time
    running: Mapped[float] = mapped_column(Double)
    pending: Mapped[float] = mapped_column(Double)
    workers: Mapped[float] = mapped_column(Double)
    loading: Mapped[float] = mapped_column(Double)
    slots: Mapped[float] = mapped_column(Double)
    stats: Mapped[Any] = mapped_column(JsonText)  # StageStats.to_json()


class DownEngineRow(Base):
    """The row of a slot whose engine is down: it died, hangs or could not be loaded, and its worker ended with it.

    Written as that worker retires, removed once a worker serves in the slot. ``omni_jobs.jobs.order.down_engines``.
    """

    __tablename__ = "down_engines"

    slot: Mapped[str] = mapped_column(String(200), primary_key=True)
    pipeline: Mapped[str] = mapped_column(NameType)
    stage: Mapped[str] = mapped_column(NameType)
    at: Mapped[float] = mapped_column(Seconds)
    pipeline_digest: Mapped[str | None] = mapped_column(String(64))  # Pipeline.digest; None: an older build noted it


class SampledWorkerRow(Base):
    """The row of what of a worker's counts is in samples. Written by the sampler, and as the worker's row goes.

    Removed with the sample that takes the worker's last counts.
    """

    __tablename__ = "sampled_workers"

    worker_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    pipeline: Mapped[str] = mapped_column(NameType)
    stage: Mapped[str] = mapped_column(NameType)
    sampled: Mapped[Any | None] = mapped_column(JsonText)  # StageStats as of the last sample; None: in none yet
    final: Mapped[Any | None] = mapped_column(JsonText)  # WorkerStats as its row went; None: the row is there
    at: Mapped[float] = mapped_column(Seconds)  # of the last change


class SamplingRow(Base):
    """The one row that says when the last sample was taken. Its lock lets one sampler at a time take one."""

    __tablename__ = "samplings"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(Seconds)


class UsageDayRow(Base):
    """The row of what a stage's attempts that ended on one day have used, of one tenant's jobs.

    ``omni_jobs.jobs.keep.usage`` explains it. Of one day there are several, as of stored bytes. All amounts are floats,
    because no sum of those overflows.
    """

    __tablename__ = "usage_days"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, index=True)  # since 1970, UTC
    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    stage: Mapped[str] = mapped_column(NameType, primary_key=True)
    part: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempts: Mapped[float] = mapped_column(Double)  # this and all that follow: the fields of UsageView
    worker_s: Mapped[float] = mapped_column(Double)
    device_s: Mapped[float] = mapped_column(Double)
    prompt_tokens: Mapped[float] = mapped_column(Double)
    completion_tokens: Mapped[float] = mapped_column(Double)
    heard_s: Mapped[float] = mapped_column(Double)
    sound_s: Mapped[float] = mapped_column(Double)
    pictures: Mapped[float] = mapped_column(Double)
    frames: Mapped[float] = mapped_column(Double)


class AuditRow(Base):
    """The row of an action of somebody that changed something. Written with the change; pruned after a time.

    It has no foreign key, because it outlives what it names.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index(None, "at", "id"),
        Index(None, "tenant", "at", "id"),
        Index(None, "target", "at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # Act.id: the same in each try of its transaction
    at: Mapped[float] = mapped_column(Seconds)
    actor: Mapped[str] = mapped_column(NameType)  # Act.actor
    action: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(255))  # an id or name; of a worker its slot; a stage: pipeline.stage
    tenant: Mapped[str | None] = mapped_column(String(64))  # whose the target is; None: nobody's, or several tenants'
    details: Mapped[Any] = mapped_column(JsonText)


class ActionRow(Base):
    """The row of an action on the jobs that match a filter. ``omni_jobs.jobs.crew.actions`` begins and prunes it.

    Whoever holds its lease takes the next step, and notes with it, in one transaction, where the action stands
    (``omni_jobs.jobs.crew.action_turns``).
    """

    __tablename__ = "actions"
    __table_args__ = (
        Index(None, "state", "lease_until"),
        Index(None, "created_at", "id"),
        Index(None, "tenant", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # made with the form that asks for it
    verb: Mapped[str] = mapped_column(String(20))
    wanted: Mapped[Any] = mapped_column(JsonText)  # the fields of a JobFilter; later one for a tenant that waited
    query: Mapped[str] = mapped_column(JsonText)  # the same as the page's address bar has it
    actor: Mapped[str] = mapped_column(NameType)  # Act.actor
    tenant: Mapped[str | None] = mapped_column(String(64))  # the one whose jobs its actor sees; None: all
    state: Mapped[str] = mapped_column(String(20))  # ActionState
    total: Mapped[int]  # the jobs that were counted; all that match, once it runs
    changed: Mapped[int]  # how many of the jobs it has changed
    skipped: Mapped[Any] = mapped_column(JsonText)  # [SkippedJobs]: those that it has left as they are
    cursor: Mapped[str | None] = mapped_column(String(40))  # the last job that it is done with; None: none yet
    waiting: Mapped[Any | None] = mapped_column(JsonText)  # ActionTurn.waiting; None: nobody
    steps: Mapped[int]  # how many steps it has taken, by which a step that is tried again knows its own commit
    trouble: Mapped[Any | None] = mapped_column(JsonText)  # ErrorView: why it waits, or has failed
    holder: Mapped[str | None] = mapped_column(String(40))  # who has taken it, anew with each time; None: nobody
    lease_until: Mapped[float] = mapped_column(Seconds)  # until then nobody else takes it
    created_at: Mapped[float] = mapped_column(Seconds)
    changed_at: Mapped[float] = mapped_column(Seconds)  # of the last step
    finished_at: Mapped[float | None] = mapped_column(Seconds)
    stopped_by: Mapped[str | None] = mapped_column(NameType)  # Act.actor; None: nobody stopped it


class PipelineVersionRow(Base):
    """The row of a version of a pipeline, from the first time that a server or a worker had its file.

    ``omni_jobs.jobs.order.pipeline_versions`` explains it.
    """

    __tablename__ = "pipeline_versions"

    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    version: Mapped[str] = mapped_column(String(20), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))  # Pipeline.digest
    first_seen_at: Mapped[float] = mapped_column(Seconds)
    draining_at: Mapped[float | None] = mapped_column(Seconds)  # since when it takes no new jobs; None: it takes them


class PausedVersionRow(Base):
    """The row of a stage that is paused of this version of its pipeline alone. A pause of all is a PausedStageRow."""

    __tablename__ = "paused_versions"

    pipeline: Mapped[str] = mapped_column(NameType, primary_key=True)
    version: Mapped[str] = mapped_column(String(20), primary_key=True)
    stage: Mapped[str] = mapped_column(NameType, primary_key=True)
    at: Mapped[float] = mapped_column(Seconds)  # of the first pause, if several administrators paused it


class DeleteHoldRow(Base):
    """The row of a hold on deletes, which a backup has; ``omni_jobs.jobs.keep.delete_holds`` explains it."""

    __tablename__ = "delete_holds"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    lease_until: Mapped[float] = mapped_column(Seconds)


class OldestBuildRow(Base):
    """The one row: the oldest build that may work on the schema, by its newest revision.

    Builds that know the schema's revision know it without this. Written by each migration.
    """

    __tablename__ = "oldest_builds"

    revision: Mapped[str] = mapped_column(String(32), primary_key=True)
    release: Mapped[str] = mapped_column(String(32))  # to which that revision belongs


Base.registry.configure()

SCHEMA: Final[MetaData] = Base.metadata
"""All tables: those of ``tables`` and these."""
