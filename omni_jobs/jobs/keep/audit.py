"""The audit is kept for a time, whatever becomes of the jobs, keys and tenants that it names."""

from typing import Final

from sqlalchemy import Connection, delete, select

from omni_jobs.database.clock import now
from omni_jobs.database.seen_tables import AuditRow

PRUNED_AT_ONCE: Final = 5000


def prune(tx: Connection, keep_s: float) -> int:
    """Delete up to PRUNED_AT_ONCE actions that are older than ``keep_s``, and return their number: call again."""
    old = select(AuditRow.id).where(AuditRow.at < now() - keep_s).order_by(AuditRow.at).limit(PRUNED_AT_ONCE)
    return tx.execute(delete(AuditRow).where(AuditRow.id.in_(old))).rowcount
