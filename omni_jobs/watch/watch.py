"""``Watch``: tells requests how their jobs change, with one poll of the database for all of them."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from anyio.to_thread import run_sync

from omni_jobs.errors import ServerBusy
from omni_jobs.http.places import Connection
from omni_jobs.jobs import Glance, Jobs
from omni_jobs.watch.failures import Failures
from omni_jobs.watch.texts import SeenText, SeenTexts
from omni_jobs.watch.watch_notes import WatchNotes

_PAUSE_S = 0.05  # between two polls, while polls are quick
_PAUSE_PER_POLL = 10.0  # after a slow poll the pause is so many times as long as the poll,
_LONGEST_PAUSE_S = 1.0  # but one slow poll delays nobody for long; it is that of a poll that failed as well


class _Watcher:
    """A request that watches a job. It keeps the newest glance alone, however long its request takes for one."""

    def __init__(self, job_id: str, with_runs: bool) -> None:
        self.job_id = job_id
        self.with_runs = with_runs
        self.is_over = False
        self._newest: Glance | None = None
        self._has_news = False  # the newest was not taken yet
        self._woken = asyncio.Event()

    def show(self, glance: Glance | None) -> None:
        """Take what a poll found of the job; None: nothing was found, and nobody looks again."""
        if self.is_over:
            return
        if glance is None:
            self.end()
            return
        if not self.with_runs:
            glance = Glance(glance.state)
        self.is_over = glance.state.is_final
        if glance != self._newest:
            self._newest, self._has_news = glance, True
            self._woken.set()

    def end(self) -> None:
        """Wake the request: nothing comes after what it has not taken yet."""
        self.is_over = True
        self._woken.set()

    async def next(self) -> Glance | None:
        """Return the newest glance once it differs from the one before; None when there comes no other."""
        while not (self._has_news or self.is_over):
            self._woken.clear()
            await self._woken.wait()
        glance = self._newest if self._has_news else None
        self._has_news = False
        return glance


@dataclass(eq=False, frozen=True, slots=True)
class WatchPlace:
    """A request's place among those that watch jobs. The request watches one job after the other, and releases it.

    tenant      for which the request counts; None: it counts among all alone
    connection  of its client
    """

    tenant: str | None
    connection: Connection | None
    _give_back: Callable[["WatchPlace"], None]

    @property
    def has_left(self) -> bool:
        """Whether its client has closed the connection."""
        return self.connection is not None and self.connection.has_left

    def release(self) -> None:
        """Give the place to others. It may be released already."""
        self._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Watch:
    """Polls the database while requests watch jobs. For one event loop.

    A request that watches keeps its connection, so the places of all, and those of a tenant, are bounded.
    """

    def __init__(
        self,
        jobs: Jobs,
        clock: Callable[[], float] = time.monotonic,
        *,
        most: int = sys.maxsize,
        most_per_tenant: int = sys.maxsize,
    ) -> None:
        """``jobs`` are asked by a thread with each poll. ``clock`` returns seconds.

        At most ``most`` requests have a place at once, and ``most_per_tenant`` of one tenant.
        """
        self._jobs = jobs
        self._texts = SeenTexts(jobs.text_pieces)
        self._notes = WatchNotes(jobs)
        self._failures = Failures("looking for changes of jobs")
        self._clock = clock
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._places: set[WatchPlace] = set()
        self._of_tenants: Counter[str] = Counter()  # the places
        self._watchers: dict[_Watcher, None] = {}
        self._released = False
        self._polls: asyncio.Task[None] | None = None

    @property
    def places_taken(self) -> int:
        """How many requests have a place among those that watch. For any thread."""
        return len(self._places)

    def reserve(self, counts_for: str | None = None, connection: Connection | None = None) -> WatchPlace:
        """Return a place among the requests that watch, for one of this tenant and connection. Release it.

        Raises ServerBusy if there are too many, or too many of the tenant, so that nothing is begun that needs one.
        """
        is_full = counts_for is not None and self._of_tenants[counts_for] >= self._most_per_tenant
        if is_full or len(self._places) >= self._most:
            raise ServerBusy("as many requests watch jobs as may do so")
        place = WatchPlace(counts_for, connection, self._give_back)
        self._places.add(place)
        if counts_for is not None:
            self._of_tenants[counts_for] += 1
        return place

    async def until_ended(
        self, job_id: str, within_s: float, counts_for: str | None = None, connection: Connection | None = None
    ) -> bool:
        """Wait until the job has ended, as ``until_all_ended`` does, in a place that is reserved for that long.

        Return False at once if there is none as well.
        """
        with suppress(ServerBusy), self.reserve(counts_for, connection) as place:
            return await self.until_all_ended([job_id], within_s, place)
        return False

    async def until_all_ended(self, job_ids: Iterable[str], within_s: float, place: WatchPlace) -> bool:
        """Wait until these jobs have ended or are gone, ``within_s`` at the longest.

        Return early, with True, for all reasons for which ``changes`` ends. Return False at once if the client has left
        already, or the server stops.
        """
        if self._is_over_for(place):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for job_id in job_ids:
                    async for _ in self.changes(job_id, place):
                        pass
        return True

    async def changes(self, job_id: str, place: WatchPlace, *, with_runs: bool = False) -> AsyncGenerator[Glance, None]:
        """Yield the job as the next poll finds it, and then each time that it has changed, until it has ended.

        ``with_runs``: also when one of its stage runs has changed, or the progress of one that runs. Whoever is slow to
        take a glance gets the newest next. While the database does not answer, nothing comes. End early if the job is
        gone or the server stops. End where the client of the place's connection has left.
        """
        if self._is_over_for(place):
            return
        with self._watching(_Watcher(job_id, with_runs), place.connection) as watcher:
            while (glance := await watcher.next()) is not None:
                yield glance

    def text_of(self, stage_run_id: int) -> SeenText | None:
        """Return the text so far of a stage run that is watched ``with_runs``; None before it has written any."""
        return self._texts.of(stage_run_id)

    def release(self) -> None:
        """Let all requests go, because the server stops. From now on nobody watches."""
        self._released = True
        for watcher in self._watchers:
            watcher.end()

    @property
    def is_released(self) -> bool:
        """Whether the server stops."""
        return self._released

    def _is_over_for(self, place: WatchPlace) -> bool:
        return self._released or place.has_left

    def _give_back(self, place: WatchPlace) -> None:
        if place not in self._places:
            return
        self._places.remove(place)
        if place.tenant is not None:
            self._of_tenants[place.tenant] -= 1
            if not self._of_tenants[place.tenant]:
                del self._of_tenants[place.tenant]

    @contextmanager
    def _watching(self, watcher: _Watcher, connection: Connection | None) -> Iterator[_Watcher]:
        """Within the context the watcher is shown what polls find."""
        self._watchers[watcher] = None
        if connection is not None:
            connection.when_left = watcher.end
        if self._polls is None or self._polls.done():
            self._polls = asyncio.create_task(self._poll())
        try:
            yield watcher
        finally:
            if connection is not None:
                connection.when_left = None
            del self._watchers[watcher]

    async def _poll(self) -> None:
        pause = _PAUSE_S
        while self._watchers:
            await asyncio.sleep(pause)
            watchers = [each for each in self._watchers if not each.is_over]
            job_ids = sorted({each.job_id for each in watchers})
            with_runs = sorted({each.job_id for each in watchers if each.with_runs})
            began = self._clock()
            self._notes.renew(job_ids, with_runs, began)
            found = await self._found(job_ids, with_runs)
            if found is None:
                pause = _LONGEST_PAUSE_S
                continue
            for each in watchers:
                each.show(found.get(each.job_id))
            pause = min(max(_PAUSE_S, _PAUSE_PER_POLL * (self._clock() - began)), _LONGEST_PAUSE_S)

    async def _found(self, job_ids: Sequence[str], with_runs: Sequence[str]) -> Mapping[str, Glance] | None:
        """Return what is found of these jobs by id; None: the database does not answer, and tells nothing of them."""
        with self._failures.logged():
            return await run_sync(self._look, job_ids, with_runs) if job_ids else {}
        return None

    def _look(self, job_ids: Sequence[str], with_runs: Sequence[str]) -> Mapping[str, Glance]:
        """Read jobs, and of those ``with_runs`` the texts."""
        glances = self._jobs.glances(job_ids, with_runs)
        self._texts.look({job_id: glances[job_id] for job_id in with_runs if job_id in glances})
        return glances
