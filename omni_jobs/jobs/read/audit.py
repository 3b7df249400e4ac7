"""Pages of the audit: who did what to what, and when."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, or_, select

from omni_jobs.database.seen_tables import AuditRow
from omni_jobs.errors import InvalidRequest

MOST_ACTS: Final = 1000


class PastAct(NamedTuple):
    """An action of somebody that has changed something."""

    id: str
    at: float  # seconds since 1970
    actor: str  # as in omni_jobs.database.audit.Act
    action: str
    target: str
    tenant: str | None  # whose the target is; None: nobody's, or several tenants'
    details: Mapping[str, Any]


def acts(
    tx: Connection,
    *,
    tenant: str | None = None,
    target: str | None = None,
    action: str | None = None,
    since: float | None = None,
    before: tuple[float, str] | None = None,
    at_most: int = 100,
) -> Sequence[PastAct]:
    """Return the newest actions first: those on a tenant's things, or on all (None), and on one ``target`` alone.

    ``action``: those of its kind alone; ``since``: from this time on, in seconds since 1970.
    ``before``: (at, id) of the last one of the page before. Raises InvalidRequest for more than MOST_ACTS, and for a
    target that nothing can be.
    """
    if not 1 <= at_most <= MOST_ACTS:
        raise InvalidRequest(f"1 to {MOST_ACTS}", field="limit")
    row = AuditRow
    conditions = []
    if tenant is not None:
        conditions.append(row.tenant == tenant)
    if target is not None:
        if not target.isprintable():
            raise InvalidRequest("not a printable name", field="target")
        conditions.append(row.target == target)
    if action is not None:
        conditions.append(row.action == action)
    if since is not None:
        conditions.append(row.at >= since)
    if before is not None:
        at, id_ = before
        # The first condition is for the index, which serves no "or": else all newer rows would be read.
        conditions += [row.at <= at, or_(row.at < at, row.id < id_)]
    columns = (getattr(row, name) for name in PastAct._fields)
    query = select(*columns).where(*conditions).order_by(row.at.desc(), row.id.desc()).limit(at_most)
    return [PastAct(*each) for each in tx.execute(query)]
