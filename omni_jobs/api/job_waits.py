"""``JobWaits``: lets requests wait for the ends of their jobs, with one poll of the database for all of them."""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from anyio.to_thread import run_sync

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.places import Connection

logger = logging.getLogger(__name__)

_PAUSE_S = 0.05  # between two polls, while polls are quick
_PAUSE_PER_POLL = 10.0  # after a slow poll the pause is so many times as long as the poll,
_LONGEST_PAUSE_S = 1.0  # but one slow poll delays nobody for long


class JobWaits:
    """Polls the database while requests wait for the ends of jobs. For one event loop.

    A wait keeps its connection, so the waits of all, and those of a tenant, are bounded: beyond, nobody waits.
    """

    def __init__(
        self,
        unfinished: Callable[[Sequence[str]], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        *,
        most: int = sys.maxsize,
        most_per_tenant: int = sys.maxsize,
    ) -> None:
        """``unfinished`` returns those of the given job ids whose jobs have not ended. ``clock`` returns seconds.

        At most ``most`` requests wait at once, and ``most_per_tenant`` of one tenant.
        """
        self._unfinished = unfinished
        self._clock = clock
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._of_tenants: Counter[str] = Counter()  # the waits that go on
        self._waits: dict[asyncio.Event, str] = {}  # each with its job's id
        self._released = False
        self._polls: asyncio.Task[None] | None = None

    async def until_ended(
        self, job_id: str, within_s: float, tenant: str | None = None, connection: Connection | None = None
    ) -> bool:
        """Wait until the job has ended or is gone, ``within_s`` at the longest. Return early if the server stops.

        Return early where the client of the ``connection`` has left, so that its place is free for others.
        Return early as well if the database does not answer: the caller reads the job next, and gets the error.
        Return False at once where it has left already, and if too many wait, or too many of the ``tenant`` (None: the
        caller counts among all alone).
        """
        is_full = tenant is not None and self._of_tenants[tenant] >= self._most_per_tenant
        has_left = connection is not None and connection.has_left
        if self._released or is_full or has_left or len(self._waits) >= self._most:
            return False
        end = asyncio.Event()
        self._waits[end] = job_id
        if tenant is not None:
            self._of_tenants[tenant] += 1
        if self._polls is None or self._polls.done():
            self._polls = asyncio.create_task(self._poll())
        if connection is not None:
            connection.when_left = end.set
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), within_s)
        finally:
            if connection is not None:
                connection.when_left = None
            del self._waits[end]
            if tenant is not None:
                self._of_tenants[tenant] -= 1
                if not self._of_tenants[tenant]:
                    del self._of_tenants[tenant]
        return True

    def release(self) -> None:
        """End all waits, because the server stops. From now on ``until_ended`` returns at once."""
        self._released = True
        for end in self._waits:
            end.set()

    async def _poll(self) -> None:
        pause = _PAUSE_S
        while self._waits:
            await asyncio.sleep(pause)
            waited_for = set(self._waits.values())
            began = self._clock()
            unfinished: Collection[str] = ()
            try:
                with suppress(OmniJobsError):
                    unfinished = await run_sync(self._unfinished, sorted(waited_for))
            except Exception:
                logger.exception("polling for the ends of jobs")  # a bug: nobody must wait for polls that have ended
            pause = min(max(_PAUSE_S, _PAUSE_PER_POLL * (self._clock() - began)), _LONGEST_PAUSE_S)
            ended = waited_for.difference(unfinished)
            for end, job_id in self._waits.items():
                if job_id in ended:
                    end.set()
