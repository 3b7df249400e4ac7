"""A round of the rescuer, in a few transactions: it frees, expires, and lets in."""

from functools import partial

from omni_jobs.database.database import Database
from omni_jobs.jobs import expire, lease, quota
from omni_jobs.jobs.values import RescueResult


def rescue(db: Database) -> RescueResult:
    """Do one round, and return its result; :meth:`omni_jobs.jobs.Jobs.rescue` explains it."""
    db.run(lease.remove_lost)
    db.run(lease.give_files)
    freed, queues = 0, set[str]()
    number = lease.FREED_AT_ONCE
    while number == lease.FREED_AT_ONCE:
        number, more_queues = db.run(lease.free_lost)
        freed += number
        queues |= more_queues
    expired = 0
    number = expire.EXPIRED_AT_ONCE
    while number >= expire.EXPIRED_AT_ONCE:
        number, more_queues = db.run(expire.expire_late)
        expired += number
        queues |= more_queues
    for tenant in db.read(quota.tenants_with_held_jobs):
        while more_queues := db.run(partial(quota.let_in, tenants=[tenant])):
            queues |= more_queues
    return RescueResult(freed, queues, expired)
