"""``Backlog``: bounds how many jobs wait, per pipeline and per tenant of a pipeline.

Each API process bounds the backlog by its own knowledge: the jobs that SQL counted last, and the jobs that this
process has accepted since. It does not know of the jobs that other processes have accepted since its last count.
So the backlog may exceed the bound by that much: it is at most the bound times the number of API processes.
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

from omni_jobs.errors import DatabaseUnavailable, TooManyJobs

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 1.0
_PAUSE_PER_COUNT = 100.0  # a count takes a hundredth of the time at most
_PAUSES_UNTIL_OLD = 10.0
_RETRY_AFTER_S = 5

Scope = tuple[str, str | None]
"""A pipeline and one of its tenants; None: all its tenants."""


@dataclass(slots=True)
class Reservation:
    """Room for jobs, within ``Backlog.reserve``'s block. Set ``taken`` there; at its end the rest is given back.

    granted  for how many jobs there is room: as many as were wanted, or fewer
    refusal  the error for the jobs beyond; None where there is room for all
    taken    how many jobs were made
    """

    granted: int
    refusal: TooManyJobs | None
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a count. ``count`` returns the queued jobs' number by (pipeline, tenant), ``clock`` seconds."""
        self._count = count
        self._per_pipeline = per_pipeline
        self._per_tenant = per_tenant
        self._clock = clock
        self._counted: Counter[Scope] = Counter()
        self._counted_at = -math.inf  # when the last count began
        self._count_at = -math.inf  # when the next count is due
        self._pause_s = _SHORTEST_PAUSE_S
        self._reserved: Counter[Scope] = Counter()  # granted, and not yet taken or given back
        self._taken: Counter[Scope] = Counter()  # since the last count began: it may hold some of them
        self._taken_meanwhile: Counter[Scope] = Counter()  # since the count began that goes on now
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
    def reserve(self, pipeline: str, tenant: str, wanted: int = 1) -> Iterator[Reservation]:
        """Context manager: reserve room for as many of the ``wanted`` jobs as may wait, and give a Reservation.

        Call ``refresh`` before. It raises nothing if there is no room: the reservation then has a ``refusal``. A block
        that ends with DatabaseUnavailable keeps its room until the next count, because its jobs may exist.
        """
        scopes: tuple[Scope, Scope] = ((pipeline, None), (pipeline, tenant))
        limits = dict(zip(scopes, (self._per_pipeline, self._per_tenant), strict=True))
        waiting = {scope: self._counted[scope] + self._taken[scope] + self._reserved[scope] for scope in scopes}
        scope = min(scopes, key=lambda scope: limits[scope] - waiting[scope])
        granted = max(0, min(wanted, limits[scope] - waiting[scope]))
        refusal = _refusal(scope, waiting[scope] + granted, limits[scope]) if granted < wanted else None
        reservation = Reservation(granted, refusal)
        self._reserved.update(dict.fromkeys(scopes, granted))
        try:
            yield reservation
        except DatabaseUnavailable:
            reservation.taken = granted
            raise
        finally:
            self._reserved.subtract(dict.fromkeys(scopes, granted))
            self._reserved += Counter()  # forget tenants without any
            self._taken.update(dict.fromkeys(scopes, reservation.taken))
            self._taken_meanwhile.update(dict.fromkeys(scopes, reservation.taken))

    async def close(self) -> None:
        """Wait for the end of a count that is going on."""
        if self._counting is not None:
            await asyncio.wait([self._counting])

    async def _refresh(self) -> None:
        began = self._clock()
        self._count_at = began + self._pause_s
        self._taken_meanwhile.clear()
        counted: Counter[Scope] = Counter()
        for (pipeline, tenant), jobs in (await run_sync(self._count, limiter=self._threads)).items():
            counted[pipeline, None] += jobs
            counted[pipeline, tenant] += jobs
        self._pause_s = max(_SHORTEST_PAUSE_S, _PAUSE_PER_COUNT * (self._clock() - began))
        self._count_at = began + self._pause_s
        self._counted, self._counted_at = counted, began
        self._taken = self._taken_meanwhile.copy()

    def _end_count(self, count: asyncio.Task[None]) -> None:
        self._counting = None
        if not count.cancelled() and (error := count.exception()) is not None:
            logger.warning("the backlog cannot be counted: %s", error)


def _refusal(scope: Scope, waiting: int, limit: int) -> TooManyJobs:
    pipeline, tenant = scope
    whose = f"pipeline {pipeline}" if tenant is None else f"tenant {tenant} in pipeline {pipeline}"
    return TooManyJobs(f"{whose} has {waiting} jobs waiting; {limit} may wait", retry_after_s=_RETRY_AFTER_S)
