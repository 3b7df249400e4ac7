"""``Jobs``: the only code that changes a job's, stage run's or worker's state. Its methods in the order of use:

submit → claim → report_progress → complete | fail | release;  cancel, retry, delete
register_worker → renew → retire_worker, forgive (by a fenced worker);  rescue, prune (by the rescuer's process)
"""

import secrets
from collections.abc import Sequence

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, OmniJobsError
from omni_jobs.jobs import (
    claim,
    complete,
    counts,
    expire,
    job_list,
    job_view,
    lease,
    progress,
    prune,
    republish,
    retry_job,
    submit,
)
from omni_jobs.jobs.values import (
    Claim,
    Completion,
    Failure,
    Garbage,
    Hint,
    NewJob,
    NewWorker,
    Outcome,
    ProgressReport,
    PruneResult,
    RescueResult,
    Retention,
    SlotHolder,
    StoredArtifact,
    SubmitResult,
)
from omni_jobs.states import JobState
from omni_jobs.views import Counts, EventView, JobView, Page, WorkerView


class Jobs:
    """The jobs, stage runs and workers of one database: all changes of their states, and all queries. Safe for threads.

    A method is one transaction (``rescue``: a few). It may be called again when its answer was lost, though ``retry``
    may raise Conflict then. The caller publishes the hints that a method returns. Every method may raise
    DatabaseUnavailable.
    """

    def __init__(
        self, db: Database, *, announce_after_s: float = 3.0, republish_at_most: int = 256, prune_after_s: float = 0.0
    ) -> None:
        """Keep jobs in this database, whose schema is migrated.

        ``rescue`` returns a lost hint ``announce_after_s`` after it was queued or last published, at most
        ``republish_at_most`` hints of a stage in one call. The pruner first reads a job that completed with one attempt
        a stage ``prune_after_s`` after its end. Give ``Retention.completed_s``, because before that nothing is due.
        """
        self._db = db
        self._announce_after_s = announce_after_s
        self._republish_at_most = republish_at_most
        self._prune_after_s = prune_after_s
        self._positions: republish.Positions = {}

    # A job's life.

    def submit(self, job: NewJob) -> SubmitResult:
        """Write a job with its stage runs, queue those without inputs, and return the job's id with their hints.

        If the tenant has used the job's idempotency key for the same request before, the result is the job of that
        submit, with ``created`` False. Raises Conflict (field ``Idempotency-Key``) if it was another request.
        """
        [result] = self.submit_all([job])
        if isinstance(result, OmniJobsError):
            raise result
        return result

    def submit_all(self, jobs: Sequence[NewJob]) -> list[SubmitResult | OmniJobsError]:
        """Submit jobs in one transaction, and return the results in the same order.

        A job's result is the error that ``submit`` would raise for it alone; the other jobs are written all the same.
        """
        if not jobs:
            return []
        prepared = [submit.prepare(job) for job in jobs]  # SQLite's other writers wait for the transaction
        return self._db.run_pipelined(lambda tx: submit.submit(tx, prepared, self._announce_after_s))

    def claim(self, worker_id: str, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        """Claim stage runs for this worker, and return the claims in the order of the hints.

        ``hints`` are pairs ``(stage_run_id, attempt)``. A stage run is left out when it is not queued, not due or
        at another attempt, because the hint was stale then; when another transaction has locked it; or when its job
        was submitted with another pipeline file than the worker's. The call may be repeated after an error: a stage
        run that this worker claimed by the same hint is returned again. So pass no hint of one that it knows it holds.
        Raises Fenced when the worker has no live lease.
        """
        return self._db.run_pipelined(lambda tx: claim.claim(tx, worker_id, hints))

    def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        """Record the progress of attempts. Drop reports of attempts that no longer run or whose rows are locked."""
        self._db.run(lambda tx: progress.report(tx, reports))

    def complete(self, completions: Sequence[Completion]) -> list[Outcome]:
        """Record completions in one transaction, and return their outcomes in the same order.

        Successors whose inputs have all succeeded are queued (the outcome's ``hints``), and a job whose stage runs
        have all succeeded is completed. ``won`` is False when the attempt is not this worker's any more, its job is
        to stop, or its job has an artifact of the same name, which fails the stage run. Nothing of it is kept then.
        """
        return self._db.run_pipelined(
            lambda tx: complete.complete(
                tx, completions, self._announce_after_s, self._prune_after_s, ends_transaction=True
            )
        )

    def complete_and_claim(
        self, completions: Sequence[Completion], worker_id: str, hints: Sequence[tuple[int, int]]
    ) -> tuple[list[Outcome], list[Claim]]:
        """Do ``complete`` and then ``claim`` in one transaction, and return the results of both.

        Raises Fenced like ``claim``. The completions may be recorded even then.
        """
        return self._db.run_pipelined(
            lambda tx: (
                complete.complete(tx, completions, self._announce_after_s, self._prune_after_s),
                claim.claim(tx, worker_id, hints),
            )
        )

    def fail(self, failure: Failure) -> Outcome:
        """Record the error of a worker's attempt, and return the outcome.

        While the stage has retries left of the error's retry class, the stage run is queued again: at once, with a
        hint, if its worker was lost or fenced, else due after a pause, without one. Otherwise its job fails. If its
        job is to stop, the stage run is cancelled. A report of an attempt that is over changes nothing, and is
        ``won`` only if its error is recorded already.
        """
        return self._db.run(lambda tx: complete.fail(tx, [failure], self._announce_after_s))[0]

    def release(self, held: Sequence[tuple[int, int]], worker_id: str) -> list[Hint]:
        """Hand back a worker's attempts ``(stage_run_id, attempt)``, which counts as no failure.

        Return the hints of the stage runs that are queued again. Attempts that are over are left alone.
        """
        outcomes = self._db.run(lambda tx: complete.release(tx, held, worker_id, self._announce_after_s))
        return [hint for outcome in outcomes for hint in outcome.hints]

    def cancel(self, job_id: str) -> JobState:
        """Cancel a job, and return its state afterwards. Raises NotFound.

        Its waiting stage runs are cancelled at once. While one runs, the job is ``cancelling``, until its
        worker has stopped it. A job that has ended keeps its state.
        """
        return self._db.run(lambda tx: complete.cancel(tx, job_id, self._announce_after_s))

    def retry(self, job_id: str, from_stage: str | None = None) -> list[Hint]:
        """Run an ended job again, as its user wishes, and return the hints of its queued stage runs.

        These stages run again: those that did not succeed, ``from_stage``, and all that follow them. They have all
        their retries again, and the job loses its deadline. Raises NotFound, and InvalidRequest for an unknown
        ``from_stage``. Raises Conflict while the job has not ended or its objects are being deleted, when no stage
        is to run, and when an input is not kept any longer; its message then says where to retry, or to submit anew.
        """
        token = secrets.token_hex(8)  # the same in each try of the transaction
        return self._db.run(lambda tx: retry_job.retry(tx, job_id, from_stage, token, self._announce_after_s))

    def delete(self, job_id: str) -> None:
        """Delete a job with its events, and note its objects as garbage. Raises NotFound, and Conflict before its end.

        A repeated call returns without an error until the pruner has deleted the objects.
        """
        self._db.run(lambda tx: prune.delete_job(tx, job_id))

    # A worker's life.

    def slot_holder(self, slot: str) -> SlotHolder | None:
        """Return the worker, live or dead, that is recorded in this slot; None if the slot is free."""
        return self._db.read(lambda tx: lease.holder(tx, slot))

    def register_worker(
        self, worker: NewWorker, lease_s: float, *, instead_of: SlotHolder | None = None, loading: bool = False
    ) -> list[Hint]:
        """Give a worker its slot and its lease, and return the hints of the stage runs that its predecessor held.

        Call it with ``loading`` before the worker loads its engine: it then holds the slot, and does not count as a
        live worker. Call it without when the engine is loaded, before the first claim. A predecessor in the slot is
        fenced, and its stage runs are freed, if its lease is over, or if it is ``instead_of``: the slot's holder
        as the caller read it and found it dead. Raises SlotTaken when another worker has the slot and a lease, or
        ``instead_of`` has renewed its lease since it was read.
        """
        return self._db.run(lambda tx: lease.register(tx, worker, lease_s, instead_of, loading, self._announce_after_s))

    def renew(self, worker_id: str, lease_s: float) -> list[int]:
        """Extend the worker's lease, and return the ids of the stage runs that it must stop, as ``unwanted`` does.

        Raises Fenced when the lease ran out or the slot has a new worker; the worker must stop then and write nothing.
        """
        return self._db.run(lambda tx: lease.renew(tx, worker_id, lease_s))

    def unwanted(self, worker_id: str) -> list[int]:
        """Return the ids of the stage runs that this worker must stop, because their job has ended or is to end."""
        return self._db.read(lambda tx: lease.unwanted(tx, worker_id))

    def retire_worker(self, worker_id: str, *, fenced: Fenced | None = None) -> list[Hint]:
        """End a worker's lease, queue the stage runs that it still holds, and return their hints.

        Also a worker without a lease may call it. A fenced worker passes the error that says so as ``fenced``. This
        is recorded as the failure of its attempts, and counts against their ``fenced`` retries.
        """
        return self._db.run(lambda tx: lease.retire(tx, worker_id, fenced, self._announce_after_s))

    def forgive(self, worker_id: str, stage_run_ids: Sequence[int]) -> None:
        """Recount the ``worker_lost`` failures of a fenced worker's stage runs as ``fenced``, because it lives.

        A stage run that has failed or has used up its ``fenced`` retries keeps ``worker_lost``.
        """
        self._db.run(lambda tx: lease.forgive(tx, worker_id, stage_run_ids))

    def rescue(self) -> RescueResult:
        """Free the stage runs of workers without a lease, expire late jobs, and find hints that seem lost.

        Return how many were freed and expired, and all hints to publish. Several processes may call it at once.
        """
        self._db.run(lease.remove_lost)
        freed, hints = 0, []
        count = lease.FREED_AT_ONCE
        while count == lease.FREED_AT_ONCE:
            count, new_hints = self._db.run(lambda tx: lease.free_lost(tx, self._announce_after_s))
            freed += count
            hints += new_hints
        expired = 0
        count = expire.EXPIRED_AT_ONCE
        while count >= expire.EXPIRED_AT_ONCE:
            count = self._db.run(lambda tx: expire.expire_late(tx, self._announce_after_s))
            expired += count
        hints += self._db.run(
            lambda tx: republish.republish(tx, self._announce_after_s, self._positions, self._republish_at_most)
        )
        return RescueResult(freed, hints, expired)

    # Retention.

    def prune(self, keep: Retention, at_most: int = 500) -> PruneResult:
        """Delete the data of up to ``at_most`` ended jobs that ``keep`` keeps no longer, and up to as many old events.

        Objects are only noted as garbage. Call again until ``checked`` and ``events`` of the result are 0.
        """
        return self._db.run(lambda tx: prune.prune(tx, keep, at_most))

    def garbage(self, at_most: int = 500, after: int = 0) -> Sequence[Garbage]:
        """Return up to ``at_most`` notes of objects to delete, the oldest first, those with an id above ``after``.

        Call ``collected`` after deleting the objects.
        """
        return self._db.read(lambda tx: prune.garbage(tx, at_most, after))

    def collected(self, ids: Sequence[int]) -> None:
        """Remove the garbage notes with these ids. Call it once their objects are deleted."""
        self._db.run(lambda tx: prune.collected(tx, ids))

    def orphans(self, keys: Sequence[str]) -> set[str]:
        """Return those of these keys of jobs' objects to which no row refers and which are of no running attempt.

        Other keys are left out. Pass none of young objects, because their submit may not be in SQL yet.
        """
        return self._db.read(lambda tx: prune.orphans(tx, keys))

    # Queries.

    def get(self, job_id: str) -> JobView:
        """Return the view of a job. Raises NotFound."""
        return self._db.read(lambda tx: job_view.job_view(tx, job_id))

    def unfinished(self, job_ids: Sequence[str]) -> set[str]:
        """Return those of these ids whose job exists and has not ended."""
        return self._db.read(lambda tx: job_view.unfinished(tx, job_ids))

    def is_known(self, tenant: str, idempotency_key: str) -> bool:
        """Return whether a job of this tenant has this idempotency key already."""
        return self._db.read(lambda tx: job_view.is_known(tx, tenant, idempotency_key))

    def list(
        self,
        limit: int = 20,
        cursor: str | None = None,
        state: JobState | None = None,
        pipeline: str | None = None,
        error_code: str | None = None,
        brief: bool = False,
    ) -> Page:
        """Return a page of at most ``limit`` (1 to 100) jobs that match all filters, the newest first.

        ``state``, ``pipeline`` and ``error_code`` are the filters (None: any). ``cursor`` is the ``next_cursor`` of
        the page before. A page ends early, with its cursor, where the texts of its jobs come to 2 MiB. The jobs of
        a ``brief`` page have no results. Raises InvalidRequest for a value that is out of range or malformed.
        """
        return self._db.read(lambda tx: job_list.job_list(tx, limit, cursor, state, pipeline, error_code, brief))

    def events(self, job_id: str) -> Sequence[EventView]:
        """Return the events of a job that are still kept, the oldest first. Raises NotFound."""
        return self._db.read(lambda tx: job_view.events(tx, job_id))

    def artifact(self, job_id: str, name: str) -> StoredArtifact:
        """Return an artifact and the reference to its object. Raises NotFound, and Gone when it is kept no longer."""
        return self._db.read(lambda tx: job_view.artifact(tx, job_id, name))

    def counts(self) -> Counts:
        """Return the numbers of unfinished jobs by state, and of unfinished stage runs by pipeline, stage and state."""
        return self._db.read(counts.counts)

    def backlog(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs that nobody has started, by (pipeline, tenant); pairs without any are left out."""
        return self._db.read(counts.queued_jobs)

    def waiting(self, pipeline: str, stage: str, at_most: int = 1000) -> int:
        """Return the number of a stage's stage runs that are queued and due, ``at_most`` if there are more."""
        return self._db.read(lambda tx: counts.claimable(tx, pipeline, stage, at_most))

    def workers(self) -> Sequence[WorkerView]:
        """Return the workers that have a live lease and have loaded their engine."""
        return self._db.read(lease.workers)
