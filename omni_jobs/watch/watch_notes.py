"""``WatchNotes``: notes in SQL which jobs are watched, so that workers and rescuers know."""

import asyncio
from collections.abc import Sequence

from anyio.to_thread import run_sync

from omni_jobs.jobs import ABANDONED_S, WATCHED_S, Jobs
from omni_jobs.watch.failures import Failures

_NOTE_EVERY_S = WATCHED_S / 3
_ASK_EVERY_S = ABANDONED_S / 3  # another client of the same job may have left meanwhile
_AGAIN_S = 1.0  # after a failure


class WatchNotes:
    """Notes that somebody asks for the jobs that are watched, and whose texts are to be written as they grow.

    Notes are written apart from the polls, because these only read: they go on where the disk is full, or the database
    takes no writes. For one event loop.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._asked_at = -_ASK_EVERY_S
        self._noted: dict[str, float] = {}  # the jobs whose stage runs are watched, and when that was noted last
        self._asks = Failures("asking for the jobs that are watched")
        self._notes = Failures("noting which jobs are watched")
        self._writing: asyncio.Task[None] | None = None

    def renew(self, job_ids: Sequence[str], with_runs: Sequence[str], now: float) -> None:
        """Write what is due of these watched jobs, behind the caller. ``now``: in seconds of a clock."""
        if self._writing is not None and not self._writing.done():
            return
        asked = job_ids if self._asked_at + _ASK_EVERY_S <= now else ()
        self._noted = {job_id: self._noted.get(job_id, -_NOTE_EVERY_S) for job_id in with_runs}
        unnoted = [job_id for job_id, at in self._noted.items() if at + _NOTE_EVERY_S <= now]
        if asked or unnoted:
            self._writing = asyncio.create_task(self._write(asked, unnoted, now))

    async def _write(self, asked: Sequence[str], unnoted: Sequence[str], now: float) -> None:
        if asked:
            with self._asks.logged():
                await run_sync(self._jobs.ask_for, asked)
                self._asked_at = now
        if unnoted:
            with self._notes.logged():
                await run_sync(self._jobs.watch, unnoted)
                self._noted |= dict.fromkeys(unnoted, now)
        if self._asks.has_failed or self._notes.has_failed:
            await asyncio.sleep(_AGAIN_S)
