"""A round of the rescuer, in short transactions: it removes lost workers, frees, expires, cancels, forgets, lets in."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection, select

from omni_jobs.database.clock import now
from omni_jobs.jobs.crew import lease
from omni_jobs.jobs.life import abandon, expire
from omni_jobs.jobs.life.first_tries import forget_tries
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.read import watched
from omni_jobs.jobs.values import RescueResult

T = TypeVar("T")

_NOW = select(now())


class Transactions(Protocol):
    """Calls a function inside a transaction, and returns what it returned."""

    def __call__(self, transaction: Callable[[Connection], T], /) -> T: ...


class DatabasePresence:
    """Since when the database has answered a rescuer, by the database's own clock.

    In a gap no worker could renew its lease, and nobody could ask for a job. So a rescuer takes a worker for lost only
    if it did not renew for a whole lease since the last gap, and a job for abandoned as late. A sleep of all processes
    and a clock that was set count as gaps.
    """

    def __init__(self, longest_pause_s: float) -> None:
        """``longest_pause_s``: a longer time between two answers is a gap."""
        self._longest_pause_s = longest_pause_s
        self._answered_at: float | None = None
        self._since = 0.0

    def note(self, at: float) -> float:
        """Note an answer of the database ``at`` this time, in seconds of its clock; return since when it has done so.

        Before the first answer nothing is known, so the presence begins with that.
        """
        if self._answered_at is None or not 0 <= at - self._answered_at <= self._longest_pause_s:
            self._since = at
        self._answered_at = at
        return self._since


def rescue(write: Transactions, read: Transactions, presence: DatabasePresence | None) -> RescueResult:
    """Free the stage runs of workers without a lease, expire late jobs, cancel abandoned ones, and let in jobs where
    a limit was changed.

    Return how many were freed and expired, and the queues to ring. Several processes may call it at once. With
    ``presence``, which a rescuer keeps from round to round, it waits for workers and clients that may only have missed
    the database: since that is there again, each worker has a whole lease of its own to renew, and each client its time
    to ask for its job. Without it the database counts as never away. ``write`` and ``read`` run transactions, as the
    database's ``run`` and ``read`` do.
    """

    def run(step: Callable[[Connection], T]) -> T:
        def noted(tx: Connection) -> T:
            _note(tx, presence)  # in each transaction, because a round may be long
            return step(tx)

        return write(noted)

    write(lambda tx: lease.remove_lost(tx, _note(tx, presence)))
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
    number = abandon.CANCELLED_AT_ONCE
    while number >= abandon.CANCELLED_AT_ONCE:
        number, more_queues = write(lambda tx: abandon.cancel_abandoned(tx, _note(tx, presence)))
        queues |= more_queues
    for forget in (watched.forget_unwatched, forget_tries):
        while run(forget):
            pass
    for tenant in read(quota.tenants_with_held_jobs):
        while more_queues := run(partial(quota.let_in, tenants=[tenant])):
            queues |= more_queues
    return RescueResult(freed, queues, expired)


def _note(tx: Connection, presence: DatabasePresence | None) -> float:
    """Note that the database answers, and return since when it does; without a presence, since ever."""
    return 0.0 if presence is None else presence.note(tx.execute(_NOW).scalar_one())
