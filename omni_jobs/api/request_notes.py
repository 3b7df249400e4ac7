"""``RequestNotes``: writes down what becomes of requests that wait for their jobs, so that any server knows of it.

    begin a first try → end it with its answer, or leave its jobs

One thread writes all that came while it wrote the notes before, in one transaction: a note is small, and a commit costs
a synced write, whatever it holds.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from omni_jobs.batch_thread import BatchThread
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.intake.kept_errors import without_frames
from omni_jobs.jobs import FirstTry, Jobs

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # before late notes are tried again
_MOST_LATE = 10_000  # of notes, a few hundred bytes each


@dataclass(frozen=True, slots=True)
class _Note:
    """What is to be noted of one request, by the arguments of ``Jobs.note_requests``; ``written``: who waits for it."""

    begun: Sequence[FirstTry] = ()
    lost: Sequence[FirstTry] = ()
    ended: Sequence[FirstTry] = ()
    left: Sequence[str] = ()
    written: Future[None] | None = None


class RequestNotes:
    """Writes notes of the requests of one API process. Safe for threads; ``close`` it.

    A note for which nobody waits is tried again while the database is away.
    """

    def __init__(self, jobs: Jobs) -> None:
        """Start the thread that writes."""
        self._jobs = jobs
        self._late: list[_Note] = []
        self._again_at: float | None = None
        self._thread: BatchThread[_Note] = BatchThread("request-notes", self._write, next_timer=lambda: self._again_at)
        self._thread.start()

    async def begin(self, first_try: FirstTry) -> None:
        """Note that a request is about to submit, whose client may send it again. Return once that is written.

        Raises DatabaseUnavailable.
        """
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a client that leaves does not stop the transaction
        self._thread.put(_Note(begun=(first_try,), written=written))
        await asyncio.wrap_future(written)

    def end(self, first_try: FirstTry) -> None:
        """Note soon that the client of a request has its answer."""
        self._thread.put(_Note(ended=(first_try,)))

    def leave(self, job_ids: Sequence[str], first_try: FirstTry | None = None) -> None:
        """Note soon that the client of these jobs has left, or does not know of them, and may send its request again.

        A job that does not exist is none that is left.
        """
        if job_ids or first_try is not None:
            self._thread.put(_Note(lost=() if first_try is None else (first_try,), left=job_ids))

    def close(self) -> None:
        """Write the notes that wait, then end the thread."""
        self._thread.close()
        if self._late:
            logger.warning("%d notes were not written: jobs go on whose clients have left", len(self._late))

    def _write(self, new: Sequence[_Note]) -> None:
        notes = [*self._late, *new]
        self._late, self._again_at = [], None
        failure = self._failure_of(notes) if notes else None
        for note in notes:
            if note.written is None:
                continue
            if failure is None:
                note.written.set_result(None)
            else:
                note.written.set_exception(failure)
        if isinstance(failure, DatabaseUnavailable):
            late = [note for note in notes if note.written is None]
            self._late = late[-_MOST_LATE:]
            if self._late:
                self._again_at = time.monotonic() + _PAUSE_S
            if len(late) > _MOST_LATE:
                logger.warning("%d notes are lost: jobs go on whose clients have left", len(late) - _MOST_LATE)

    def _failure_of(self, notes: Sequence[_Note]) -> Exception | None:
        """Write the notes in one transaction. Return the error of one that has failed."""
        try:
            self._jobs.note_requests(
                begun=[each for note in notes for each in note.begun],
                lost=[each for note in notes for each in note.lost],
                ended=[each for note in notes for each in note.ended],
                left=[each for note in notes for each in note.left],
            )
        except DatabaseUnavailable as error:
            logger.warning("%d notes of requests: %s", len(notes), error)
            return without_frames(error)
        except Exception as error:  # a bug: nobody must wait for what does not come
            logger.exception("notes of requests")
            return without_frames(error)
        return None
