"""The submitter: jobs that come while a transaction is under way share the next one.

A commit costs a synced write, whatever is in it. One thread submits for all; a job that
comes alone waits for nobody. It takes jobs that are ready to be written, so nobody waits
for what it takes to make another's.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from omni_jobs.errors import Conflict, DatabaseUnavailable
from omni_jobs.jobs import Hint, NewJob, SubmitResult

__all__ = ["Submitter", "submit_apart"]

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 256

Wishes = Sequence[tuple[NewJob, str | None]]
SubmitAll = Callable[[Wishes], Sequence[SubmitResult | Conflict]]


def submit_apart(submit_all: SubmitAll, wishes: Wishes) -> Sequence[SubmitResult | Exception]:
    """Submit jobs with their idempotency keys together; the answers in their order, errors among them.

    What the database refuses of one fails no other. DatabaseUnavailable is the answer where the database
    does not answer: the job may exist all the same then. It raises nothing.
    """
    try:
        return submit_all(wishes)
    except DatabaseUnavailable as error:
        return [error] * len(wishes)
    except Exception as error:
        if len(wishes) > 1:
            return [answer for wish in wishes for answer in submit_apart(submit_all, [wish])]
        logger.exception("job %s was refused by the database", wishes[0][0].job_id)
        return [error]


@dataclass(frozen=True, slots=True)
class _Wish:
    job: NewJob
    idempotency_key: str | None
    answer: Future[SubmitResult] = field(default_factory=Future)


class Submitter:
    """Safe for threads. ``start`` before the first submit, ``close`` at the end."""

    def __init__(self, submit_all: SubmitAll, send: Callable[[Sequence[Hint]], object]) -> None:
        """``submit_all``: that of ``Jobs``. ``send`` publishes hints and must not raise: the rescuer repeats them."""
        self._submit_all = submit_all
        self._send = send
        self._waiting: queue.SimpleQueue[_Wish | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: NewJob, idempotency_key: str | None) -> Future[SubmitResult]:
        """Soon: the answer to the job, which it made or whose key named another before.

        It raises Conflict, and DatabaseUnavailable: the job may exist all the same
        then, and only an idempotency key makes it safe to try again.
        """
        wish = _Wish(job, idempotency_key)
        wish.answer.set_running_or_notify_cancel()  # what is under way is not stopped by a client that leaves
        self._waiting.put(wish)
        return wish.answer

    def close(self) -> None:
        """Answer what waits, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            wishes: list[_Wish] = []
            wish = self._waiting.get()
            while True:
                if wish is None:
                    closing = True
                else:
                    wishes.append(wish)
                if len(wishes) == _MOST_AT_ONCE:
                    break
                try:
                    wish = self._waiting.get_nowait()
                except queue.Empty:
                    break
            try:
                if wishes:
                    self._answer(wishes)
            except Exception as error:
                # A bug: nobody is to wait for an answer that does not come, now or after the thread has ended.
                logger.exception("submitter")
                for unanswered in wishes:
                    if not unanswered.answer.done():
                        unanswered.answer.set_exception(error)

    def _answer(self, wishes: Sequence[_Wish]) -> None:
        answers = submit_apart(self._submit_all, [(wish.job, wish.idempotency_key) for wish in wishes])
        self._send([hint for answer in answers if isinstance(answer, SubmitResult) for hint in answer.hints])
        for wish, answer in zip(wishes, answers, strict=True):
            if isinstance(answer, SubmitResult):
                wish.answer.set_result(answer)
            else:
                wish.answer.set_exception(answer)
