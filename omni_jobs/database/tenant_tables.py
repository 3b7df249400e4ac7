"""The tables of what tenants use up: turns, room in quotas, stored bytes. :mod:`omni_jobs.jobs` is the only writer."""

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Double, Integer, String

from omni_jobs.database.tables import Base, NameType


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


TurnRow.registry.configure()  # all rows, as the modules are loaded: else the first query of a process does it
