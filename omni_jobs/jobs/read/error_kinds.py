"""The kinds of errors that attempts ended with, by fingerprint, and how often each came over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Integer, cast, func, select

from omni_jobs.database.tables import AttemptErrorRow, StageRunRow
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.life.fingerprint import pattern

MOST_KINDS: Final = 1000
MOST_STEPS: Final = 2000
"""The most times of ``error_counts``."""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Errors that are alike, and the newest of them."""

    fingerprint: str
    code: str
    pipeline: str
    stage: str
    pattern: str  # the message, without what varies
    count: int  # in the time asked for
    first_at: float  # in that time, in seconds since 1970
    last_at: float
    job_id: str  # of the newest
    message: str  # of the newest


def error_kinds(
    tx: Connection, since: float, until: float, *, tenant: str | None = None, at_most: int = 100
) -> Sequence[ErrorKind]:
    """Return the kinds of the errors of [since, until), seconds since 1970, the most frequent first.

    They are those of a tenant's jobs, or of all (None). Errors that were written before fingerprints were are left out,
    and so are those of jobs that are deleted. Raises InvalidRequest for more than MOST_KINDS.
    """
    if not 1 <= at_most <= MOST_KINDS:
        raise InvalidRequest(f"1 to {MOST_KINDS}", field="limit")
    row = AttemptErrorRow
    number = func.count().label("number")
    query = (
        select(row.fingerprint, number, func.min(row.at).label("first_at"), func.max(row.at).label("last_at"))
        .where(row.fingerprint.is_not(None), *_within(since, until, tenant))
        .group_by(row.fingerprint)
        .order_by(number.desc(), row.fingerprint)
        .limit(at_most)
    )
    kinds = [(each, _newest(tx, each.fingerprint, since, until, tenant)) for each in tx.execute(query).all()]
    return [
        ErrorKind(
            each.fingerprint,
            newest.error["code"],
            newest.pipeline,
            newest.stage,
            pattern(newest.error["message"]),
            each.number,
            each.first_at,
            each.last_at,
            newest.job_id,
            newest.error["message"],
        )
        for each, newest in kinds
    ]


def _newest(tx: Connection, fingerprint: str, since: float, until: float, tenant: str | None) -> Any:
    row = AttemptErrorRow
    query = (
        select(row.error, StageRunRow.job_id, StageRunRow.pipeline, StageRunRow.stage)
        .join(StageRunRow, StageRunRow.id == row.stage_run_id)
        .where(row.fingerprint == fingerprint, *_within(since, until, tenant))
        .order_by(row.at.desc())
        .limit(1)
    )
    return tx.execute(query).one()


def error_counts(
    tx: Connection, since: float, until: float, step_s: float, *, fingerprint: str, tenant: str | None = None
) -> Sequence[int]:
    """Return how many errors of a kind came in each ``step_s`` seconds of [since, until), the oldest first.

    Raises InvalidRequest for more than MOST_STEPS times, and for a fingerprint that no error can have.
    """
    steps = -int(-(until - since) // step_s) if step_s > 0 else 0
    if not 1 <= steps <= MOST_STEPS:
        raise InvalidRequest(f"ask for 1 to {MOST_STEPS} steps", field="step_s")
    if not fingerprint.isalnum() or not fingerprint.isascii():
        raise InvalidRequest("no fingerprint", field="fingerprint")
    row = AttemptErrorRow
    passed: ColumnElement[Any] = (row.at - since) / step_s
    number = cast(passed if tx.dialect.name == "sqlite" else func.floor(passed), Integer)  # PostgreSQL's cast rounds
    query = (
        select(number.label("step"), func.count().label("number"))
        .where(row.fingerprint == fingerprint, *_within(since, until, tenant))
        .group_by(number)
    )
    counts = [0] * steps
    for each in tx.execute(query):
        counts[min(each.step, steps - 1)] += each.number
    return counts


def _within(since: float, until: float, tenant: str | None) -> list[ColumnElement[bool]]:
    row = AttemptErrorRow
    conditions = [row.at >= since, row.at < until]
    if tenant is not None:
        conditions.append(row.tenant == tenant)
    return conditions
