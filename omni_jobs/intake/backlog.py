"""The backlog: how many jobs wait, and the bound on it, per pipeline and per tenant of a pipeline.

Each API process goes by a count of its own: what SQL said last, and what it has
submitted itself since. A count costs a query, so there is one a second at most, and
queries that take long take no more than a hundredth of the time. A thread of its own
counts, and requests do not wait for it: they go by the last count meanwhile. They wait
only at the start, or when the last count is very old, all of them for the same count,
and share the error where it fails.

So a process never lets more wait than its limit, as far as it knows. What it does not
know is what other processes have accepted since its last count: the backlog may exceed
the limit by that much, and never the limit times the number of processes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from omni_jobs.errors import DatabaseUnavailable, TooManyJobs

__all__ = ["Backlog", "Place"]

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 1.0
_PAUSE_PER_COUNT = 100.0
_PAUSES_UNTIL_OLD = 10.0
_UNKNOWN_RETRY_S = 10  # nothing is seen to leave the queue
_LONGEST_RETRY_S = 60

Scope = tuple[str, str | None]
"""A pipeline and one of its tenants; None: all of them."""


@dataclass(slots=True)
class Place:
    """Room for jobs; its receiver says whether they are ``taken``."""

    taken: bool = False


class Backlog:
    """Safe for threads."""

    def __init__(
        self,
        count: Callable[[], Mapping[tuple[str, str], int]],
        *,
        per_pipeline: int,
        per_tenant: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``count``: queued jobs by (pipeline, tenant), as ``Jobs.backlog`` gives them. ``clock``: seconds."""
        self._count = count
        self._per_pipeline = per_pipeline
        self._per_tenant = per_tenant
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows; held for moments
        self._counted: Counter[Scope] = Counter()
        self._counted_at: float | None = None  # when that count began
        self._due = -math.inf  # when to count again
        self._pause = _SHORTEST_PAUSE_S
        self._places: Counter[Scope] = Counter()  # given out, and not yet known whether they are taken
        self._taken: Counter[Scope] = Counter()  # since the last count began: it may hold some of them, or none
        self._taken_meanwhile: Counter[Scope] | None = None  # since the count that goes on now began
        self._leaving: dict[Scope, float] = {}  # jobs a second that left the queue, smoothed
        self._count_under_way: Future[None] | None = None
        self._counter: threading.Thread | None = None

    @contextmanager
    def place(self, pipeline: str, tenant: str, jobs: int = 1) -> Iterator[Place]:
        """Room for jobs that are about to be submitted; set ``taken`` when they were.

        It goes by the last count and never waits: call ``keep_fresh`` or ``refresh`` before it.
        Raises TooManyJobs, and DatabaseUnavailable when nothing was ever counted.
        """
        scopes: tuple[Scope, Scope] = ((pipeline, None), (pipeline, tenant))
        with self._lock:
            if self._counted_at is None:
                raise DatabaseUnavailable("the backlog has not been counted yet")
            for scope, limit in zip(scopes, (self._per_pipeline, self._per_tenant), strict=True):
                self._refuse_if_full(scope, limit, jobs)
            self._places.update(dict.fromkeys(scopes, jobs))
        place = Place()
        try:
            yield place
        except DatabaseUnavailable:
            place.taken = True  # the job may be there all the same; the next count tells
            raise
        finally:
            with self._lock:
                self._places.subtract(dict.fromkeys(scopes, jobs))
                self._places += Counter()  # forget tenants without any
                if place.taken:
                    self._taken.update(dict.fromkeys(scopes, jobs))
                    if self._taken_meanwhile is not None:
                        self._taken_meanwhile.update(dict.fromkeys(scopes, jobs))

    def keep_fresh(self) -> Future[None] | None:
        """Begin a count where one is due. Return it where the last one is too old to go by: wait for it then.

        None: go on. The count raises DatabaseUnavailable to everyone who waits for it.
        """
        with self._lock:
            now = self._clock()
            is_old = self._counted_at is None or now - self._counted_at > _PAUSES_UNTIL_OLD * self._pause
            if not is_old and (now < self._due or self._count_under_way is not None):
                return None
            count = self._count_under_way
            begins = count is None
            if count is None:
                count = self._count_under_way = Future()
                count.set_running_or_notify_cancel()  # one who leaves takes it from nobody
        if begins:
            self._begin(count)
        return count if is_old else None

    def refresh(self) -> None:
        """Wait for a count where the last one is too old to go by. Raises DatabaseUnavailable."""
        if (count := self.keep_fresh()) is not None:
            count.result()

    def close(self) -> None:
        """Wait for the count that goes on, if any."""
        if self._counter is not None:
            self._counter.join()

    # The bound

    def _refuse_if_full(self, scope: Scope, limit: int, jobs: int) -> None:
        waiting = self._counted[scope] + self._taken[scope] + self._places[scope]
        if waiting + jobs <= limit:
            return
        pipeline, tenant = scope
        whose = f"pipeline {pipeline}" if tenant is None else f"tenant {tenant} in pipeline {pipeline}"
        raise TooManyJobs(
            f"{whose} has {waiting} jobs waiting; {limit} may wait",
            retry_after_s=self._retry_after(scope, waiting - limit + jobs),
        )

    def _retry_after(self, scope: Scope, too_many: int) -> int:
        """Seconds until so many have probably left."""
        rate = self._leaving.get(scope, 0.0)
        return min(_LONGEST_RETRY_S, math.ceil(too_many / rate)) if rate > 0 else _UNKNOWN_RETRY_S

    # The count

    def _begin(self, count: Future[None]) -> None:
        counter = threading.Thread(target=self._run, args=(count,), name="backlog", daemon=True)
        try:
            counter.start()
        except RuntimeError as error:  # no thread to be had
            self._end(count, DatabaseUnavailable(f"the backlog cannot be counted: {error}"))
            return
        self._counter = counter

    def _run(self, count: Future[None]) -> None:
        try:
            self._count_now()
        except DatabaseUnavailable as error:
            logger.warning("the backlog cannot be counted: %s", error)
            self._end(count, error)
        except BaseException as error:
            logger.exception("the backlog cannot be counted")
            self._end(count, error)
        else:
            self._end(count)

    def _end(self, count: Future[None], error: BaseException | None = None) -> None:
        with self._lock:
            self._count_under_way = None
        if error is None:
            count.set_result(None)
        else:
            count.set_exception(error)

    def _count_now(self) -> None:
        began = self._clock()
        with self._lock:
            self._due = began + self._pause
            self._taken_meanwhile = Counter()
        try:
            found = self._count()
        except BaseException:
            with self._lock:
                self._taken_meanwhile = None
            raise
        counted: Counter[Scope] = Counter()
        for (pipeline, tenant), number in found.items():
            counted[pipeline, None] += number
            counted[pipeline, tenant] += number
        with self._lock:
            if self._counted_at is not None and began > self._counted_at:
                self._leaving = self._rates(counted, began - self._counted_at)
            self._pause = max(_SHORTEST_PAUSE_S, _PAUSE_PER_COUNT * (self._clock() - began))
            self._due = began + self._pause
            self._counted, self._counted_at = counted, began
            self._taken, self._taken_meanwhile = self._taken_meanwhile, None

    def _rates(self, counted: Counter[Scope], seconds: float) -> dict[Scope, float]:
        """What left each queue since the last count: what was there and what came, less what is there."""
        rates = {}
        for scope in counted | self._counted:
            rate = max(0, self._counted[scope] + self._taken[scope] - counted[scope]) / seconds
            known = self._leaving.get(scope)
            rates[scope] = rate if known is None else (rate + known) / 2
        return rates
