"""``LeftJobs``: notes which jobs have lost the clients that waited for them, also while the server stops."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from anyio.to_thread import run_sync

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import FirstTry, Jobs

logger = logging.getLogger(__name__)


class LeftJobs:
    """Writes notes behind the requests that end. For one event loop; ``close`` it."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._notes: set[asyncio.Task[None]] = set()

    def leave(self, job_ids: Sequence[str], first_try: FirstTry | None = None) -> None:
        """Note that the client of these jobs has left, and may send its request again.

        Return at once, because the request may be cancelled already.
        """
        self._begin(self._left(job_ids, first_try))

    def end(self, first_try: FirstTry) -> None:
        """Note that the client of a request has its answer. Return at once."""
        self._begin(self._ended(first_try))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        note = asyncio.create_task(work)
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def close(self) -> None:
        """Write the notes that are still to be written."""
        while self._notes:
            await asyncio.wait(self._notes)

    async def _left(self, job_ids: Sequence[str], first_try: FirstTry | None) -> None:
        try:
            await run_sync(self._jobs.abandon, job_ids)
            if first_try is not None:
                await run_sync(self._jobs.lose_try, first_try)
        except OmniJobsError as error:
            logger.warning("%d jobs go on, whose client has left: %s", len(job_ids), error)

    async def _ended(self, first_try: FirstTry) -> None:
        try:
            await run_sync(self._jobs.end_try, first_try)
        except OmniJobsError as error:
            logger.warning("a later request of the same text may get the job of one that was answered: %s", error)
