"""``Jobs``: the only code that changes a job's, stage run's or worker's state. Its methods in the order of use:

submit → claim → report_progress, record_snapshots → complete | fail | release;  cancel, retry, delete
register_worker → renew → retire_worker, forgive (by a fenced worker);  rescue, prune (by the rescuer's process)
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import count

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, OmniJobsError
from omni_jobs.identity import StageId
from omni_jobs.jobs.crew import lease, rescue
from omni_jobs.jobs.crew.database_presence import DatabasePresence
from omni_jobs.jobs.keep import garbage, prune, stored_bytes
from omni_jobs.jobs.keep.retention import Retention
from omni_jobs.jobs.life import claim, complete, progress, retry_job, snapshot, submit
from omni_jobs.jobs.order import pause
from omni_jobs.jobs.read import calibrate, counts, glances, job_list, job_view
from omni_jobs.jobs.read.waits import Detail
from omni_jobs.jobs.values import (
    Claims,
    Completion,
    Failure,
    Garbage,
    Glance,
    NewSnapshot,
    NewWorker,
    Outcome,
    ProgressReport,
    PruneResult,
    Renewal,
    RescueResult,
    SlotHolder,
    StoredArtifact,
    SubmitResult,
)
from omni_jobs.new_job import NewJob
from omni_jobs.states import JobState
from omni_jobs.views import CalibrationView, Counts, EventView, JobView, Page, WorkerView


class Jobs:
    """The jobs, stage runs and workers of one database: all changes of their states, and all queries. Safe for threads.

    A method is one transaction (``rescue``: a few). It may be called again when its answer was lost, though ``retry``
    may raise Conflict then. The caller rings the doorbells of the queues that a method returns. Every method may raise
    DatabaseUnavailable.
    """

    def __init__(self, db: Database, *, prune_after_s: float = 0.0, only_known_tenants: bool = False) -> None:
        """Keep jobs in this database, whose schema is migrated.

        ``only_known_tenants``: submits and retries for a tenant without a row are refused as Unauthenticated.
        The pruner first reads a job that left no payloads ``prune_after_s`` after its end. Give
        ``Retention.without_payloads_s``, because before that nothing is due.
        """
        self._db = db
        self._prune_after_s = prune_after_s
        self._only_known_tenants = only_known_tenants

    # A job's life.

    def submit(self, job: NewJob) -> SubmitResult:
        """Write a job with its stage runs, queue those without inputs, and return the job's id with the queues to ring.

        If the tenant has used the job's idempotency key for the same request before, the result is the job of that
        submit, with ``created`` False. Raises IdempotencyKeyReused if it was for another request.
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
        rows = [submit.rows_of(job) for job in jobs]  # SQLite's other writers wait for the transaction
        return self._db.run(lambda tx: submit.submit(tx, rows, self._only_known_tenants))

    def claim(
        self,
        worker_id: str,
        at_most: int,
        *,
        of_high: int = 0,
        is_idle: bool = True,
        held: Collection[int] = (),
        again: bool = False,
    ) -> Claims:
        """Claim the due stage runs of this worker's stage with the lowest turns; none while its lease is over.

        Stage runs are passed over whose rows are locked, or whose job was submitted with another pipeline file than the
        worker's.

        Args:
            at_most: the number of stage runs of any jobs.
            of_high: the number of further ones of high jobs; one of the two numbers is above 0.
            is_idle: whether the worker runs nothing. Then it may get a suspect, which is claimed by itself; a busy
                worker gets nothing instead, and the suspect is set apart for it.
            held: the ids of all stage runs that the worker knows it holds.
            again: whether the answer of the claim before was lost. If that had claimed stage runs, they are returned,
                and no others.

        Raises:
            Fenced: if the worker has no row any more, because it was lost.
        """
        tries = count(int(again))
        return self._db.run(
            lambda tx: claim.claim(tx, worker_id, at_most, of_high, is_idle, held if next(tries) else None)
        )

    def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        """Record the progress of attempts. Drop reports of attempts that no longer run or whose rows are locked."""
        self._db.run(lambda tx: progress.report(tx, reports))

    def record_snapshots(self, snapshots: Sequence[NewSnapshot]) -> list[bool]:
        """Record stored snapshots of running attempts in one transaction: their next attempts go on from there.

        The snapshots before become garbage. Return in the same order whether each is recorded, now or by an earlier
        call whose answer was lost: False when the attempt is not this worker's any more. The caller then deletes its
        object.
        """
        return self._db.run(lambda tx: snapshot.record(tx, snapshots))

    def complete(self, completions: Sequence[Completion]) -> list[Outcome]:
        """Record completions in one transaction, and return their outcomes in the same order.

        Successors whose inputs have all succeeded are queued (the outcome's ``queues``), and a job whose stage runs
        have all succeeded is completed. ``won`` is False when the attempt is not this worker's any more, its job is
        to stop, or its job has an artifact of the same name, which fails the stage run. Nothing of it is kept then.
        """
        return self._db.run(lambda tx: complete.complete(tx, completions, self._prune_after_s))

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        at_most: int,
        *,
        of_high: int = 0,
        is_idle: bool = True,
        held: Collection[int] = (),
        again: bool = False,
    ) -> tuple[list[Outcome], Claims]:
        """Do ``complete`` and then ``claim`` in one transaction, and return the results of both.

        Raises Fenced like ``claim``. Nothing is recorded then.
        """
        tries = count(int(again))
        return self._db.run(
            lambda tx: (
                complete.complete(tx, completions, self._prune_after_s),
                claim.claim(tx, worker_id, at_most, of_high, is_idle, held if next(tries) else None),
            )
        )

    def fail(self, failure: Failure) -> Outcome:
        """Record the error of a worker's attempt, and return the outcome.

        While the stage has retries left of the error's retry class, the stage run is queued again: due at
        once if its worker was lost or fenced, else after a pause. Otherwise its job fails. If its
        job is to stop, the stage run is cancelled. A report of an attempt that is over changes nothing, and is
        ``won`` only if its error is recorded already.
        """
        return self._db.run(lambda tx: complete.fail(tx, [failure]))[0]

    def release(self, held: Sequence[tuple[int, int]], worker_id: str) -> set[str]:
        """Hand back a worker's attempts ``(stage_run_id, attempt)``, which counts as no failure.

        Return the queues of those that are queued again. Attempts that are over are left alone.
        """
        outcomes = self._db.run(lambda tx: complete.release(tx, held, worker_id))
        return {queue for outcome in outcomes for queue in outcome.queues}

    def cancel(self, job_id: str, tenant: str | None = None) -> JobState:
        """Cancel a job, and return its state afterwards. Raises NotFound, also for a job of another ``tenant``.

        Its waiting stage runs are cancelled at once. While one runs, the job is ``cancelling``, until its
        worker has stopped it. A job that has ended keeps its state. If another job is let in instead, nobody rings
        for it: workers with free slots find it when they poll.
        """
        return self._db.run(lambda tx: complete.cancel(tx, job_view.owned(tx, job_id, tenant)))

    def retry(self, job_id: str, from_stage: str | None = None) -> set[str]:
        """Run an ended job again, as its user wishes, and return the queues to ring.

        These stages run again: those that did not succeed, ``from_stage``, and all that follow them. They have all
        their retries again, and the job loses its deadline. Raises NotFound, and InvalidRequest for an unknown
        ``from_stage``. Raises Conflict while the job has not ended or its objects are being deleted, when no stage
        is to run, and when an input is not kept any longer; its message then says where to retry, or to submit anew.
        """
        token = secrets.token_hex(8)  # the same in each try of the transaction
        return self._db.run(lambda tx: retry_job.retry(tx, job_id, from_stage, token, self._only_known_tenants))

    def delete(self, job_id: str, tenant: str | None = None) -> None:
        """Delete a job with its events, and note its objects as garbage. Raises NotFound, and Conflict before its end.

        A repeated call returns without an error until the pruner has deleted the objects. With a ``tenant`` it raises
        NotFound, because nothing tells whose the job was, as for the job of another tenant.
        """
        self._db.run(lambda tx: prune.delete_job(tx, job_view.owned(tx, job_id, tenant)))

    # A worker's life.

    def slot_holder(self, slot: str) -> SlotHolder | None:
        """Return the worker, live or dead, that is recorded in this slot; None if the slot is free."""
        return self._db.read(lambda tx: lease.holder(tx, slot))

    def register_worker(
        self, worker: NewWorker, lease_s: float, *, instead_of: SlotHolder | None = None, loading: bool = False
    ) -> set[str]:
        """Give a worker its slot and its lease, and return the queues to ring for what its predecessor held.

        Call it with ``loading`` before the worker loads its engine: it then holds the slot, and does not count as a
        live worker. Call it without when the engine is loaded, before the first claim. A predecessor in the slot is
        fenced, and its stage runs are freed, if its lease is over, or if it is ``instead_of``: the slot's holder
        as the caller read it and found it dead. Raises SlotTaken when another worker has the slot and a lease, or
        ``instead_of`` has renewed its lease since it was read.
        """
        return self._db.run(lambda tx: lease.register(tx, worker, lease_s, instead_of, loading))

    def renew(self, worker_id: str, lease_s: float, run_s: float | None = None) -> Renewal:
        """Extend the worker's lease. Return the ids that ``unwanted`` returns, and whether its stage is paused.

        ``run_s`` is how long a stage run took this worker lately, from claim to end; None if it does not know. A lease
        that ran out, while the database was away perhaps, begins anew if nobody has taken the stage runs. Raises
        Fenced when a rescuer or the slot's new worker has; the worker must stop then and write nothing.
        """
        return self._db.run(lambda tx: lease.renew(tx, worker_id, lease_s, run_s))

    def unwanted(self, worker_id: str) -> list[int]:
        """Return the ids of the stage runs that this worker must stop, because their job has ended or is to end."""
        return self._db.read(lambda tx: lease.unwanted(tx, worker_id))

    def retire_worker(self, worker_id: str, *, fenced: Fenced | None = None) -> set[str]:
        """End a worker's lease, queue the stage runs that it still holds, and return the queues to ring.

        Also a worker without a lease may call it. A fenced worker passes the error that says so as ``fenced``. This
        is recorded as the failure of its attempts, and counts against their ``fenced`` retries.
        """
        return self._db.run(lambda tx: lease.retire(tx, worker_id, fenced))

    def forgive(self, worker_id: str) -> None:
        """Recount the ``worker_lost`` failures of a fenced worker's stage runs as ``fenced``, because it lives.

        So it is for those that it does not know of, because the answer to their claim was lost. A stage run that has
        failed or has used up its ``fenced`` retries keeps ``worker_lost``.
        """
        self._db.run(lambda tx: lease.forgive(tx, worker_id))

    # A stage's pause.

    def pause(self, stage: StageId) -> None:
        """Pause a stage, unless it is: its workers claim nothing more, each after its next renewal at the latest.

        What they run goes on, and so do deadlines. Stages need no row, so the caller checks that there is such a stage.
        """
        self._db.run(lambda tx: pause.pause(tx, stage))

    def resume(self, stage: StageId) -> None:
        """End a stage's pause, if there is one. The caller rings the stage's queue."""
        self._db.run(lambda tx: pause.resume(tx, stage))

    def paused_stages(self) -> Mapping[tuple[str, str], float]:
        """Return when each paused stage was paused, in seconds since 1970, by (pipeline, stage)."""
        return self._db.read(pause.paused_stages)

    def rescue(self, presence: DatabasePresence | None = None) -> RescueResult:
        """Free the stage runs of workers without a lease, expire late jobs, and let in jobs where a limit was changed.

        Return how many were freed and expired, and the queues to ring. Several processes may call it at once. With
        ``presence``, which a rescuer keeps from round to round, it waits for workers that may only have missed the
        database: each has a whole lease of its own to renew since that is there again.
        """
        return rescue.rescue(self._db, presence)

    def calibrate(self) -> None:
        """Note what became of the estimates that are kept, make later ones better by it, and keep a few new ones.

        The rescuer calls it with every round, one transaction a stage. Several processes may call it at once.
        """
        for line in self._db.read(calibrate.lines):
            self._db.run(partial(calibrate.calibrate, each=line))

    # Retention.

    def prune(self, keep: Retention, at_most: int = 500) -> PruneResult:
        """Delete the data of up to ``at_most`` ended jobs that ``keep`` keeps no longer, and up to as many old events.

        Objects are only noted as garbage. Call again until ``checked`` and ``events`` of the result are 0.
        """
        return self._db.run(lambda tx: prune.prune(tx, keep, at_most))

    def hasten(self, keep: Retention, after: float | None = None, at_most: int = 5000) -> float | None:
        """Make due what ``keep`` keeps no longer of some ``at_most`` jobs. Return the next ``after``, or None."""
        return self._db.run(lambda tx: prune.hasten(tx, keep, after, at_most))

    def garbage(self, at_most: int = 500, after: int = 0) -> Sequence[Garbage]:
        """Return up to ``at_most`` notes of objects to delete, the oldest first, those with an id above ``after``.

        Call ``collected`` after deleting the objects.
        """
        return self._db.read(lambda tx: garbage.garbage(tx, at_most, after))

    def collected(self, ids: Sequence[int]) -> None:
        """Remove the garbage notes with these ids. Call it once their objects are deleted."""
        self._db.run(lambda tx: garbage.collected(tx, ids))

    def orphans(self, keys: Sequence[str]) -> set[str]:
        """Return those of these keys of jobs' objects to which no row refers and which are of no running attempt.

        Other keys are left out. Pass none of young objects, because their submit may not be in SQL yet.
        """
        return self._db.read(lambda tx: garbage.orphans(tx, keys))

    # Queries. ``tenant`` is the one that asks: the jobs of others are for it as if they never were. None sees all.

    def get(self, job_id: str, tenant: str | None = None, *, detail: Detail = Detail.FINE) -> JobView:
        """Return the view of a job, with the estimate of its wait as finely as ``detail`` says. Raises NotFound."""
        return self._db.read(lambda tx: job_view.job_view(tx, job_id, tenant, detail))

    def glances(self, job_ids: Collection[str], with_runs: Collection[str] = ()) -> dict[str, Glance]:
        """Return glances at those of these jobs that exist, by job id; those at ``with_runs`` have the stage runs."""
        return self._db.read(lambda tx: glances.glances(tx, job_ids, with_runs))

    def known_keys(self, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these tenants' idempotency keys (tenant, key) that name a job already."""
        return self._db.read(lambda tx: submit.known_keys(tx, keys))

    def list(
        self,
        limit: int = 20,
        cursor: str | None = None,
        state: JobState | None = None,
        pipeline: str | None = None,
        error_code: str | None = None,
        brief: bool = False,
        tenant: str | None = None,
    ) -> Page:
        """Return a page of at most ``limit`` (1 to 100) jobs that match all filters, the newest first.

        ``state``, ``pipeline`` and ``error_code`` are the filters (None: any). ``cursor`` is the ``next_cursor`` of
        the page before. A page ends early, with its cursor, where the texts of its jobs come to 2 MiB. The jobs of
        a ``brief`` page have no results. Raises InvalidRequest for a value that is out of range or malformed.
        """
        return self._db.read(
            lambda tx: job_list.job_list(tx, limit, cursor, state, pipeline, error_code, brief, tenant)
        )

    def events(self, job_id: str, tenant: str | None = None) -> Sequence[EventView]:
        """Return the events of a job that are still kept, the oldest first. Raises NotFound."""
        return self._db.read(lambda tx: job_view.events(tx, job_id, tenant))

    def artifact(self, job_id: str, name: str, tenant: str | None = None) -> StoredArtifact:
        """Return an artifact and the reference to its object. Raises NotFound, and Gone when it is kept no longer."""
        return self._db.read(lambda tx: job_view.artifact(tx, job_id, name, tenant))

    def counts(self, tenant: str | None = None) -> Counts:
        """Return the numbers of unfinished jobs by state, and of unfinished stage runs by pipeline, stage and state."""
        return self._db.read(lambda tx: counts.counts(tx, tenant))

    def backlog(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs that nobody has started, by (pipeline, tenant); pairs without any are left out."""
        return self._db.read(counts.queued_jobs)

    def running(self) -> dict[str, int]:
        """Return the number of jobs in progress by tenant; tenants without any are left out."""
        return self._db.read(counts.running_jobs)

    def media_bytes(self, tenant: str, job_id: str | None = None) -> int:
        """Return the bytes of the media that are kept of a tenant's unfinished jobs together, or of the job."""
        return self._db.read(lambda tx: counts.media_bytes(tx, tenant, job_id))

    def stored_bytes(self, tenant: str) -> int:
        """Return the bytes that a tenant keeps stored, of all its jobs (``omni_jobs.jobs.keep.stored_bytes``)."""
        return self._db.read(lambda tx: stored_bytes.of_tenant(tx, tenant))

    def waiting(self, pipeline: str, stage: str, at_most: int = 1000) -> int:
        """Return the number of a stage's stage runs that are queued and due, ``at_most`` if there are more."""
        return self._db.read(lambda tx: counts.claimable(tx, pipeline, stage, at_most))

    def calibrations(self) -> Sequence[CalibrationView]:
        """Return how many of each stage's estimates have held, sorted by pipeline and stage."""
        return self._db.read(calibrate.calibrations)

    def workers(self) -> Sequence[WorkerView]:
        """Return the workers that have a live lease and have loaded their engine."""
        return self._db.read(lease.workers)
