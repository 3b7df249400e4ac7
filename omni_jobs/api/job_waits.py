"""``Ends``: requests that wait for a job's end, and the one look at the database that serves them all."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from omni_jobs.errors import OmniJobsError

__all__ = ["Ends"]

logger = logging.getLogger(__name__)

_PAUSE_S = 0.05  # between two looks: how late an end is seen, while looks are quick
_PAUSE_PER_LOOK = 10.0  # with so many waiting that a look takes long, the pause is so many times as long,
_LONGEST_PAUSE_S = 1.0  # but a look that was slow for once, or failed after many tries, makes nobody late


class Ends:
    """Looks, on a thread of its own, while somebody waits."""

    def __init__(
        self, unfinished: Callable[[Sequence[str]], Collection[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``unfinished``: which of these job ids are of jobs that have not ended. ``clock``: seconds."""
        self._unfinished = unfinished
        self._clock = clock
        self._changed = threading.Condition()
        self._waits: dict[asyncio.Future[None], str] = {}  # each with its job's id; under _changed
        self._released = False  # under _changed
        self._thread: threading.Thread | None = None  # under _changed

    async def of(self, job_id: str, within_s: float) -> None:
        """Returns once the job has ended or is gone, when the time is up, and when the server stops."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._released:
                return
            self._waits[end] = job_id
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ends", daemon=True)
                self._thread.start()
        try:
            await asyncio.wait([end], timeout=within_s)
        finally:
            with self._changed:
                del self._waits[end]

    def release(self) -> None:
        """Whoever waits is let go, and nobody waits any longer."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
            self._settle(set(self._waits.values()))

    def close(self) -> None:
        """Release, and end the thread."""
        self.release()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = _PAUSE_S
        while asked := self._asked(pause):
            began = self._clock()
            try:
                unfinished = self._unfinished(sorted(asked))
            except OmniJobsError:
                unfinished = ()  # whoever waits looks for himself next, and is told what is wrong
            except Exception:
                logger.exception("ends")  # a bug: nobody is to wait for a thread that has ended
                unfinished = ()
            pause = min(max(_PAUSE_S, _PAUSE_PER_LOOK * (self._clock() - began)), _LONGEST_PAUSE_S)
            with self._changed:
                self._settle(asked.difference(unfinished))

    def _asked(self, pause: float) -> set[str]:
        """After a pause: the jobs whose end somebody waits for; none when there is nothing to look for any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._released, timeout=pause)
            self._changed.wait_for(lambda: self._waits or self._released)
            return set() if self._released else set(self._waits.values())

    def _settle(self, job_ids: Collection[str]) -> None:
        for end, job_id in self._waits.items():
            if job_id in job_ids:
                end.get_loop().call_soon_threadsafe(_settle, end)


def _settle(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)
