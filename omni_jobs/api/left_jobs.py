"""``LeftJobs``: notes which jobs have lost the clients that waited for them, also while the server stops."""

import asyncio
import logging
from collections.abc import Sequence

from anyio.to_thread import run_sync

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Jobs

logger = logging.getLogger(__name__)


class LeftJobs:
    """Writes notes behind the requests that end. For one event loop; ``close`` it."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._notes: set[asyncio.Task[None]] = set()

    def leave(self, job_ids: Sequence[str], key: str | None = None) -> None:
        """Note that the client of these jobs has left. Return at once, because the request may be cancelled already.

        ``key``: the one under which its first try submitted them, if the client gave none.
        """
        note = asyncio.create_task(self._note(job_ids, key))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def close(self) -> None:
        """Write the notes that are still to be written."""
        while self._notes:
            await asyncio.wait(self._notes)

    async def _note(self, job_ids: Sequence[str], key: str | None) -> None:
        try:
            await run_sync(self._jobs.abandon, job_ids)
            if key is not None:
                await run_sync(self._jobs.lose_try, key)
        except OmniJobsError as error:
            logger.warning("%d jobs go on, whose client has left: %s", len(job_ids), error)
