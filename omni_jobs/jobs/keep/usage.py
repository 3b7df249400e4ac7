"""Usage: what attempts took and made, by tenant, day, pipeline and stage, kept when their jobs are long deleted.

Each transaction that ends attempts adds what they used to the rows of that day, and to that of each stage run. So the
sum over a tenant's rows is the sum over all its stage runs, also of those that are deleted. A day has several rows, as
a tenant's stored bytes have, because transactions that change the same row wait for each other. They are locked last of
all, sorted by their keys, and who holds one waits for nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, func, select

from omni_jobs.database.clock import now
from omni_jobs.database.seen_tables import UsageDayRow
from omni_jobs.database.statement import Statements
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.views import UsageReport, UsageRow, UsageView, sum_usage

AMOUNTS: Final = tuple(UsageView.model_fields)
"""The names of what is counted."""
GROUPS: Final = ("day", "tenant", "pipeline", "stage")
"""By what a report may add up, in the order of its rows."""
MOST_ROWS: Final = 10_000
"""The most rows of a report."""

_MADE = frozenset(AMOUNTS) - {"attempts", "worker_s"}
_MOST = 1e12  # of one attempt, so that a wrong count of a model's or a server's leaves the others readable
_DAY_S = 86_400
_EPOCH = date(1970, 1, 1).toordinal()

_sql = Statements(__file__)
ADD_USAGE = _sql.bulk("add_usage", f"tenant day pipeline stage part {' '.join(AMOUNTS)}")

Used = dict[tuple[str, str, str], dict[str, float]]
"""What a transaction's attempts used, by tenant, pipeline and stage."""


def of_attempt(worker_s: float, device_s: float, made: Mapping[str, float]) -> dict[str, float]:
    """Return what one attempt used, without what is 0. Clocks that were set count as no time."""
    used: dict[str, float] = {"attempts": 1}
    if worker_s > 0:
        used["worker_s"] = round(worker_s, 6)
    if device_s or made:
        for name, amount in {**made, "device_s": device_s}.items():
            if name in _MADE and math.isfinite(amount) and amount > 0:
                used[name] = min(amount, _MOST) if isinstance(amount, int) else round(min(amount, _MOST), 6)
    return used


def add(more: Mapping[str, float], to: dict[str, float]) -> None:
    """Add what was used to a sum."""
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def note(used: Used, whose: tuple[str, str, str], more: Mapping[str, float]) -> None:
    """Add to what a transaction's attempts used."""
    known = used.get(whose)
    if known is None:
        used[whose] = dict(more)
    else:
        add(more, known)


def rows_to_add(used: Used, at: float) -> list[tuple[Any, ...]]:
    """Return the rows of ADD_USAGE for what was used by attempts that end ``at`` this time, in seconds since 1970."""
    day, part = int(at // _DAY_S), stored_bytes.own_part()
    return [
        (tenant, day, pipeline, stage, part, *(amounts.get(name, 0) for name in AMOUNTS))
        for (tenant, pipeline, stage), amounts in sorted(used.items())
    ]


def report(
    tx: Connection,
    first_day: date,
    last_day: date,
    *,
    by: Collection[str] = GROUPS,
    pipeline: str | None = None,
    tenant: str | None = None,
) -> UsageReport:
    """Return what was used on these days, added up by those of GROUPS that ``by`` names, the newest day first.

    ``pipeline`` and ``tenant`` are those whose usage is meant; None: any. Raises InvalidRequest for more than
    MOST_ROWS rows, and for a name that no job can have.
    """
    columns: dict[str, Any] = {name: getattr(UsageDayRow, name) for name in GROUPS if name in by}
    conditions: list[ColumnElement[bool]] = [UsageDayRow.day.between(_number(first_day), _number(last_day))]
    for name, value in (("pipeline", pipeline), ("tenant", tenant)):
        if value is not None and not value.isprintable():
            raise InvalidRequest("not a printable name", field=name)
        if value is not None:
            conditions.append(getattr(UsageDayRow, name) == value)
    sums = [func.sum(getattr(UsageDayRow, name)).label(name) for name in AMOUNTS]
    order = [column.desc() if name == "day" else column for name, column in columns.items()]
    query = select(*columns.values(), *sums).where(*conditions).group_by(*columns.values()).order_by(*order)
    found = [row._mapping for row in tx.execute(query.limit(MOST_ROWS + 1)) if row.attempts is not None]
    if len(found) > MOST_ROWS:
        raise InvalidRequest(f"more than {MOST_ROWS} rows: ask for fewer days, or by less", field="by")
    amounts = [{name: row[name] for name in AMOUNTS} for row in found]
    rows = [_row(row, list(columns), each) for row, each in zip(found, amounts, strict=True)]
    return UsageReport(first_day=first_day, last_day=last_day, rows=rows if columns else [], total=sum_usage(amounts))


def _row(row: Mapping[Any, Any], names: Sequence[str], amounts: Mapping[str, float]) -> UsageRow:
    keys: dict[str, Any] = {
        name: date.fromordinal(_EPOCH + row[name]) if name == "day" else row[name] for name in names
    }
    return UsageRow(**keys, usage=sum_usage([amounts]))


def _number(day: date) -> int:
    return day.toordinal() - _EPOCH


def prune(tx: Connection, keep_s: float) -> int:
    """Delete what was used on days that ended longer ago than ``keep_s``, and return the number of rows."""
    at: float = tx.execute(select(now())).scalar_one()
    return tx.execute(delete(UsageDayRow).where(UsageDayRow.day < (at - keep_s) // _DAY_S)).rowcount
