"""``GroupCommit``: writes all jobs that are submitted while a transaction goes on in the next transaction.

A commit costs a synced write, whatever it holds. One thread writes the jobs of all requests; a job that comes alone
waits for no other. The thread takes jobs that are ready to be written, so no job waits for the admission of another.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from omni_jobs.batch_thread import BatchThread
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError
from omni_jobs.intake.kept_errors import without_frames
from omni_jobs.jobs import SubmitResult
from omni_jobs.new_job import NewJob

logger = logging.getLogger(__name__)


_LARGEST_TRANSACTION = 256  # jobs


@dataclass(frozen=True, slots=True)
class _Group:
    """Jobs of one caller, and the future that their results go to."""

    jobs: Sequence[NewJob]
    results: Future[list[SubmitResult | OmniJobsError]] = field(default_factory=Future)


class GroupCommit:
    """Writes jobs to SQL, then rings the doorbells of their queues. Safe for threads; ``close`` it."""

    def __init__(
        self,
        submit_all: Callable[[Sequence[NewJob]], Sequence[SubmitResult | OmniJobsError]],
        ring: Callable[[Collection[str]], object],
    ) -> None:
        """Start the thread. ``submit_all`` writes jobs, like ``Jobs.submit_all``. ``ring`` must not raise."""
        self._submit_all = submit_all
        self._ring = ring
        self._thread: BatchThread[_Group] = BatchThread("group-commit", self._commit)
        self._thread.start()

    def submit(self, jobs: Sequence[NewJob]) -> Future[list[SubmitResult | OmniJobsError]]:
        """Write jobs soon, with those of other callers. Return a future of the list of results, in the jobs' order.

        A result is a SubmitResult or an error. IdempotencyKeyReused: the key names a job of another request.
        DatabaseUnavailable: the job may exist all the same, and only an idempotency key makes it safe to submit it
        again. OmniJobsError: the database refuses this one job.
        """
        group = _Group(jobs)
        group.results.set_running_or_notify_cancel()  # a client that leaves does not stop the transaction
        self._thread.put(group)
        return group.results

    def close(self) -> None:
        """Write the jobs that wait, then end the thread."""
        self._thread.close()

    def _commit(self, groups: Sequence[_Group]) -> None:
        for transaction in _transactions(groups):
            try:
                results = self._write([job for group in transaction for job in group.jobs])
                self._ring({queue for result in results if isinstance(result, SubmitResult) for queue in result.queues})
                written = iter(results)
                for group in transaction:
                    group.results.set_result([next(written) for _ in group.jobs])
            except Exception as error:  # a bug: nobody must wait for a result that does not come
                logger.exception("group commit")
                for group in transaction:
                    if not group.results.done():
                        group.results.set_exception(without_frames(error))

    def _write(self, jobs: Sequence[NewJob]) -> Sequence[SubmitResult | OmniJobsError]:
        """Write jobs in one transaction; one by one where the database refuses some of them."""
        try:
            return self._submit_all(jobs)
        except DatabaseUnavailable as error:
            return [without_frames(error)] * len(jobs)
        except Exception:
            if len(jobs) > 1:
                return [result for job in jobs for result in self._write([job])]
            logger.exception("job %s was refused by the database", jobs[0].job_id)
            return [OmniJobsError("something went wrong in the server")]


def _transactions(groups: Sequence[_Group]) -> Iterator[list[_Group]]:
    """Share the groups out to transactions that end as soon as they have _LARGEST_TRANSACTION jobs."""
    transaction: list[_Group] = []
    jobs = 0
    for group in groups:
        transaction.append(group)
        jobs += len(group.jobs)
        if jobs >= _LARGEST_TRANSACTION:
            yield transaction
            transaction, jobs = [], 0
    if transaction:
        yield transaction
