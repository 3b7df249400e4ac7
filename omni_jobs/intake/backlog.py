"""``Backlog``: bounds how many jobs wait, per pipeline and per tenant of a pipeline; and how many of a tenant run.

Each API process bounds the backlog by its own knowledge: the jobs that SQL counted last, and the jobs that this
process has accepted since. It does not know of the jobs that other processes have accepted since its last count.
So the backlog may exceed the bound by that much: it is at most the bound times the number of API processes.
Where as many jobs of a tenant run as may run, by the last count, none of its jobs has room.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import DatabaseUnavailable, LimitReached, TooManyJobs, TooManyRunningJobs
from omni_jobs.tenants.tenant_limits import NO_LIMITS, Limits

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 1.0
_PAUSE_PER_COUNT = 100.0  # a count takes a hundredth of the time at most
_PAUSES_UNTIL_OLD = 10.0
_RETRY_AFTER_S = 5

BacklogKey = tuple[str, str | None]
"""A pipeline's name and one of its tenants; None: all its tenants. The versions of a pipeline share one bound."""


@dataclass(slots=True)
class Reservation:
    """Room for jobs, within ``Backlog.reserve``'s block. Set ``taken`` there; at its end the rest is given back.

    granted  for how many jobs there is room: as many as were wanted, or fewer
    refusal  the error for the jobs beyond; None where there is room for all
    taken    how many jobs were made
    """

    granted: int
    refusal: LimitReached | None
    taken: int = 0


class Backlog:
    """Knows how many jobs wait, and reserves room for new ones, in one API process. For one event loop.

    A full backlog raises nothing: it grants room for fewer jobs than wanted, and the reservation holds the refusal.
    """

    def __init__(
        self,
        count: Callable[[], Mapping[tuple[str, str], int]],
        *,
        per_pipeline: int,
        per_tenant: int,
        running: Callable[[], Mapping[str, int]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a count.

        ``count`` returns the queued jobs' number by (pipeline, tenant), ``running`` that of the jobs in progress by
        tenant, and ``clock`` seconds. ``per_tenant`` holds for tenants without a limit of their own.
        """
        self._count = count
        self._count_running = running
        self._per_pipeline = per_pipeline
        self._per_tenant = per_tenant
        self._clock = clock
        self._counted: Counter[BacklogKey] = Counter()
        self._running: Mapping[str, int] = {}
        self._counted_at = -math.inf  # when the last count began
        self._count_at = -math.inf  # when the next count is due
        self._pause_s = _SHORTEST_PAUSE_S
        self._reserved: Counter[BacklogKey] = Counter()  # granted, and not yet taken or given back
        self._taken: Counter[BacklogKey] = Counter()  # since the last count began: it may hold some of them
        self._taken_meanwhile: Counter[BacklogKey] = Counter()  # since the count began that goes on now
        self._counting: asyncio.Task[None] | None = None
        self._threads = CapacityLimiter(1)  # of its own, because a slow count must not wait for other threads

    async def refresh(self) -> None:
        """Count the waiting jobs in SQL again if that is due. Wait for the count only if the last one is too old.

        Raises DatabaseUnavailable only where it waits, the same error for all who wait for one count.
        """
        now = self._clock()
        is_old = now - self._counted_at > _PAUSES_UNTIL_OLD * self._pause_s
        if self._counting is None and (is_old or now >= self._count_at):
            self._counting = asyncio.create_task(self._refresh())
            self._counting.add_done_callback(self._end_count)
        if is_old and self._counting is not None:
            await asyncio.shield(self._counting)  # a request that is cancelled takes the count from nobody

    @contextmanager
    def reserve(self, pipeline: str, tenant: str, wanted: int = 1, limits: Limits = NO_LIMITS) -> Iterator[Reservation]:
        """Context manager: reserve room for as many of the ``wanted`` jobs as may wait, and give a Reservation.

        Call ``refresh`` before. It raises nothing if there is no room: the reservation then has a ``refusal``. A block
        that ends with DatabaseUnavailable keeps its room until the next count, because its jobs may exist.
        """
        keys: tuple[BacklogKey, BacklogKey] = ((pipeline, None), (pipeline, tenant))
        per_tenant = self._per_tenant if limits.queued_jobs is None else limits.queued_jobs
        bounds = dict(zip(keys, (self._per_pipeline, per_tenant), strict=True))
        waiting = {key: self._counted[key] + self._taken[key] + self._reserved[key] for key in keys}
        key = min(keys, key=lambda key: bounds[key] - waiting[key])
        granted = max(0, min(wanted, bounds[key] - waiting[key]))
        refusal: LimitReached | None = None
        if granted < wanted:
            refusal = _refusal(key, waiting[key] + granted, bounds[key])
        running = self._running.get(tenant, 0)
        if limits.running_jobs is not None and running >= limits.running_jobs:
            granted, refusal = 0, _running_refusal(tenant, running, limits.running_jobs)
        reservation = Reservation(granted, refusal)
        self._reserved.update(dict.fromkeys(keys, granted))
        try:
            yield reservation
        except DatabaseUnavailable:
            reservation.taken = granted
            raise
        finally:
            self._reserved.subtract(dict.fromkeys(keys, granted))
            for key in keys:
                if not self._reserved[key]:
                    del self._reserved[key]
            self._taken.update(dict.fromkeys(keys, reservation.taken))
            self._taken_meanwhile.update(dict.fromkeys(keys, reservation.taken))

    async def close(self) -> None:
        """Wait for the end of a count that is going on."""
        if self._counting is not None:
            await asyncio.wait([self._counting])

    async def _refresh(self) -> None:
        began = self._clock()
        self._count_at = began + self._pause_s
        self._taken_meanwhile.clear()
        counted: Counter[BacklogKey] = Counter()
        queued, running = await run_sync(lambda: (self._count(), self._count_running()), limiter=self._threads)
        for (pipeline, tenant), jobs in queued.items():
            counted[pipeline, None] += jobs
            counted[pipeline, tenant] += jobs
        self._pause_s = max(_SHORTEST_PAUSE_S, _PAUSE_PER_COUNT * (self._clock() - began))
        self._count_at = began + self._pause_s
        self._counted, self._running, self._counted_at = counted, running, began
        self._taken = self._taken_meanwhile.copy()

    def _end_count(self, count: asyncio.Task[None]) -> None:
        self._counting = None
        if not count.cancelled() and (error := count.exception()) is not None:
            logger.warning("the backlog cannot be counted: %s", error)


def _refusal(key: BacklogKey, waiting: int, limit: int) -> TooManyJobs:
    pipeline, tenant = key
    if tenant is None:  # no number, because a tenant may not learn of the jobs of others
        return TooManyJobs(f"as many jobs wait in pipeline {pipeline} as may wait", retry_after_s=_RETRY_AFTER_S)
    message = f"tenant {tenant} in pipeline {pipeline} has {waiting} jobs waiting; {limit} may wait"
    return TooManyJobs(message, retry_after_s=_RETRY_AFTER_S)


def _running_refusal(tenant: str, running: int, limit: int) -> TooManyRunningJobs:
    message = f"tenant {tenant} has {running} jobs in progress; {limit} may be"
    return TooManyRunningJobs(message, retry_after_s=_RETRY_AFTER_S)
