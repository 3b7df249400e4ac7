"""The kinds of errors that attempts ended with, by fingerprint, and how often each came over time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Integer, Text, bindparam, cast, func, select

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import Statements, listed
from omni_jobs.database.tables import AttemptErrorRow, decode_json
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.life.fingerprint import pattern

_sql = Statements(__file__)

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
    kinds = tx.execute(query).all()
    # A microsecond later than the newest, so that a number's way through JSON makes it no earlier.
    lines = listed({"fingerprint": each.fingerprint, "until": each.last_at + 1e-6} for each in kinds)
    rows = _sql["newest"].rows(tx, {"lines": lines, "tenant": tenant or ""}) if kinds else []
    newest = {fingerprint: (decode_json(error), *run) for fingerprint, error, *run in rows}
    return [
        ErrorKind(
            each.fingerprint,
            error["code"],
            pipeline,
            stage,
            pattern(error["message"]),
            each.number,
            each.first_at,
            each.last_at,
            job_id,
            error["message"],
        )
        for each in kinds
        if each.fingerprint in newest  # else the pruner has come between the two queries
        for error, job_id, pipeline, stage in [newest[each.fingerprint]]
    ]


def error_counts(
    tx: Connection,
    since: float,
    until: float,
    step_s: float,
    *,
    fingerprints: Collection[str],
    tenant: str | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return how many errors of each kind came in each ``step_s`` seconds of [since, until), the oldest first.

    Raises InvalidRequest for more than MOST_STEPS times, for more than MOST_KINDS kinds, and for a fingerprint that no
    error can have.
    """
    steps = -int(-(until - since) // step_s) if step_s > 0 else 0
    if not 1 <= steps <= MOST_STEPS:
        raise InvalidRequest(f"ask for 1 to {MOST_STEPS} steps", field="step_s")
    if len(fingerprints) > MOST_KINDS:
        raise InvalidRequest(f"{MOST_KINDS} at most", field="fingerprint")
    if not all(each.isalnum() and each.isascii() for each in fingerprints):
        raise InvalidRequest("no fingerprint", field="fingerprint")
    row = AttemptErrorRow
    passed: ColumnElement[Any] = (row.at - since) / step_s
    number = cast(passed if tx.dialect.name == "sqlite" else func.floor(passed), Integer)  # PostgreSQL's cast rounds
    query = (
        select(row.fingerprint, number.label("step"), func.count().label("number"))
        .where(one_of(row.fingerprint, bindparam("fingerprints", type_=Text)), *_within(since, until, tenant))
        .group_by(row.fingerprint, number)
    )
    counts = {each: [0] * steps for each in fingerprints}
    for each in tx.execute(query, {"fingerprints": listed(fingerprints)}):
        counts[each.fingerprint][min(each.step, steps - 1)] += each.number
    return counts


def _within(since: float, until: float, tenant: str | None) -> list[ColumnElement[bool]]:
    row = AttemptErrorRow
    conditions = [row.at >= since, row.at < until]
    if tenant is not None:
        conditions.append(row.tenant == tenant)
    return conditions
