"""Holds on deletes: while one lasts, no pruner deletes an object, because a backup still copies what its dump names.

A pruner asks right before it deletes, after it has found that nothing refers to the objects. So a hold needs to wait
for no pruner: what one deletes that has not seen it, was needed no more before the hold began, and so by no dump since.
"""

from sqlalchemy import Connection, delete, insert, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.seen_tables import DeleteHoldRow


def hold_deletes(tx: Connection, holder: str, lease_s: float) -> None:
    """Begin a hold, or renew it: it lasts for ``lease_s`` from now."""
    until = now() + lease_s
    if not tx.execute(update(DeleteHoldRow).where(DeleteHoldRow.id == holder).values(lease_until=until)).rowcount:
        tx.execute(insert(DeleteHoldRow).values(id=holder, lease_until=until))


def end_hold(tx: Connection, holder: str) -> None:
    """End a hold, and remove those whose holders have died."""
    tx.execute(delete(DeleteHoldRow).where((DeleteHoldRow.id == holder) | (DeleteHoldRow.lease_until < now())))


def deletes_are_held(tx: Connection) -> bool:
    """Return whether a hold lasts."""
    return tx.execute(select(DeleteHoldRow.id).where(DeleteHoldRow.lease_until >= now()).limit(1)).first() is not None
