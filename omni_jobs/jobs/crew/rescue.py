"""A round of the rescuer, in short transactions: it removes lost workers, frees, expires, and lets in."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, select

from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.jobs.crew import lease
from omni_jobs.jobs.crew.database_presence import DatabasePresence
from omni_jobs.jobs.life import expire
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.values import RescueResult

T = TypeVar("T")

_NOW = select(now())


def rescue(db: Database, presence: DatabasePresence | None) -> RescueResult:
    """Do one round, and return its result; :meth:`omni_jobs.jobs.Jobs.rescue` explains it.

    Without a ``presence`` the database counts as never away.
    """

    def run(step: Callable[[Connection], T]) -> T:
        return db.run(lambda tx: (_note(tx, presence), step(tx))[1])  # in each, because a round may be long

    db.run(lambda tx: lease.remove_lost(tx, _note(tx, presence)))
    freed, queues = 0, set[str]()
    number = lease.FREED_AT_ONCE
    while number == lease.FREED_AT_ONCE:
        number, more_queues = run(lease.free_lost)
        freed += number
        queues |= more_queues
    expired = 0
    number = expire.EXPIRED_AT_ONCE
    while number >= expire.EXPIRED_AT_ONCE:
        number, more_queues = run(expire.expire_late)
        expired += number
        queues |= more_queues
    for tenant in db.read(quota.tenants_with_held_jobs):
        while more_queues := run(partial(quota.let_in, tenants=[tenant])):
            queues |= more_queues
    return RescueResult(freed, queues, expired)


def _note(tx: Connection, presence: DatabasePresence | None) -> float:
    """Note that the database answers, and return since when it does; without a presence, since ever."""
    return 0.0 if presence is None else presence.note(tx.execute(_NOW).scalar_one())
