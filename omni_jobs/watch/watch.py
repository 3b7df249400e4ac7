"""``Watch``: tells requests how their jobs change, with one poll of the database for all of them."""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from anyio.to_thread import run_sync

from omni_jobs.errors import OmniJobsError, ServerBusy
from omni_jobs.http.places import Connection
from omni_jobs.jobs import ABANDONED_S, WATCHED_S, Glance, Jobs
from omni_jobs.watch.texts import SeenText, SeenTexts

logger = logging.getLogger(__name__)

_PAUSE_S = 0.05  # between two polls, while polls are quick
_PAUSE_PER_POLL = 10.0  # after a slow poll the pause is so many times as long as the poll,
_NOTE_EVERY_S = WATCHED_S / 3
_ASK_EVERY_S = ABANDONED_S / 3  # another client of the same job may have left meanwhile
_LONGEST_PAUSE_S = 1.0  # but one slow poll delays nobody for long


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


class Watch:
    """Polls the database while requests watch jobs. For one event loop.

    A request that watches keeps its connection, so those of all, and those of a tenant, are bounded.
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

        At most ``most`` requests watch at once, and ``most_per_tenant`` of one tenant.
        """
        self._jobs = jobs
        self._texts = SeenTexts(jobs.text_pieces)
        self._noted: dict[str, float] = {}  # the jobs whose stage runs are watched, and when that was noted last
        self._asked_at = -_ASK_EVERY_S
        self._clock = clock
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._of_tenants: Counter[str] = Counter()  # the watchers
        self._watchers: dict[_Watcher, None] = {}
        self._released = False
        self._polls: asyncio.Task[None] | None = None

    def check_room(self, counts_for: str | None = None) -> None:
        """Raise ServerBusy if too many watch, or too many for the tenant, so that nothing is begun that needs one."""
        if self._is_full_for(counts_for):
            raise ServerBusy("as many requests watch jobs as may do so")

    async def until_ended(
        self, job_id: str, within_s: float, counts_for: str | None = None, connection: Connection | None = None
    ) -> bool:
        """Wait until the job has ended or is gone, ``within_s`` at the longest.

        Return early, with True, for all reasons for which ``changes`` ends. Return False at once if the client has left
        already, the server stops, or too many watch.
        """
        if self._is_over_for(connection) or self._is_full_for(counts_for):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async for _ in self.changes(job_id, counts_for, connection):
                    pass
        return True

    async def changes(
        self,
        job_id: str,
        counts_for: str | None = None,
        connection: Connection | None = None,
        *,
        with_runs: bool = False,
    ) -> AsyncGenerator[Glance, None]:
        """Yield the job as the next poll finds it, and then each time that it has changed, until it has ended.

        ``with_runs``: also when one of its stage runs has changed, or the progress of one that runs. Whoever is slow to
        take a glance gets the newest next. End early if the job is gone or the server stops. End where the client of
        the ``connection`` has left, so that its place is free for others. End as well if the database does not answer:
        the caller reads the job next, and gets the error. The first step raises ServerBusy if too many watch, or too
        many for the tenant that it ``counts_for`` (None: it counts among all alone).
        """
        if self._is_over_for(connection):
            return
        self.check_room(counts_for)
        with self._watching(_Watcher(job_id, with_runs), counts_for, connection) as watcher:
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

    def _is_over_for(self, connection: Connection | None) -> bool:
        return self._released or (connection is not None and connection.has_left)

    def _is_full_for(self, tenant: str | None) -> bool:
        is_full = tenant is not None and self._of_tenants[tenant] >= self._most_per_tenant
        return is_full or len(self._watchers) >= self._most

    @contextmanager
    def _watching(self, watcher: _Watcher, tenant: str | None, connection: Connection | None) -> Iterator[_Watcher]:
        """Within the context the watcher is shown what polls find."""
        self._watchers[watcher] = None
        if tenant is not None:
            self._of_tenants[tenant] += 1
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
            if tenant is not None:
                self._of_tenants[tenant] -= 1
                if not self._of_tenants[tenant]:
                    del self._of_tenants[tenant]

    async def _poll(self) -> None:
        pause = _PAUSE_S
        while self._watchers:
            await asyncio.sleep(pause)
            watchers = [each for each in self._watchers if not each.is_over]
            began = self._clock()
            found = await self._found(watchers, began) if watchers else {}
            for each in watchers:
                each.show(found.get(each.job_id))
            pause = min(max(_PAUSE_S, _PAUSE_PER_POLL * (self._clock() - began)), _LONGEST_PAUSE_S)

    async def _found(self, watchers: Sequence[_Watcher], now: float) -> Mapping[str, Glance]:
        """Return what is found of their jobs by id, which is nothing while the database does not answer."""
        job_ids = sorted({each.job_id for each in watchers})
        with_runs = sorted({each.job_id for each in watchers if each.with_runs})
        try:
            with suppress(OmniJobsError):
                return await run_sync(self._look, job_ids, with_runs, now)
        except Exception:
            logger.exception("polling for changes of jobs")  # a bug: nobody must wait for polls that have ended
        return {}

    def _look(self, job_ids: Sequence[str], with_runs: Sequence[str], now: float) -> Mapping[str, Glance]:
        """Read jobs, and of those ``with_runs`` the texts; tell the workers of these, too, that they are watched.

        Every job that is watched is one that somebody asks for.
        """
        self._noted = {job_id: self._noted.get(job_id, -_NOTE_EVERY_S) for job_id in with_runs}
        if unnoted := [job_id for job_id, at in self._noted.items() if at + _NOTE_EVERY_S <= now]:
            self._jobs.watch(unnoted)
            self._noted |= dict.fromkeys(unnoted, now)
        if self._asked_at + _ASK_EVERY_S <= now:
            self._jobs.ask_for(job_ids)
            self._asked_at = now
        glances = self._jobs.glances(job_ids, with_runs)
        self._texts.look({job_id: glances[job_id] for job_id in with_runs if job_id in glances})
        return glances
