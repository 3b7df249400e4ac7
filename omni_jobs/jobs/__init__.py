"""Jobs: the one owner of transitions. A job's life, and a worker's, in order:

    submit → claim → report_progress → complete | fail | release;  cancel, retry, delete
    register_worker → renew → retire_worker, forgive;  rescue (frees, expires, announces);  prune

Every method is one transaction (``rescue``: a few) and may be called again when its
answer was lost. Hints in the answers are to be published after the call, best effort.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, Fenced
from omni_jobs.jobs import (
    announce,
    claim,
    complete,
    counts,
    expire,
    job_list,
    job_view,
    lease,
    progress,
    prune,
    retry_job,
    worker_views,
)
from omni_jobs.jobs.submit import as_written, draft, new_job_id, submit
from omni_jobs.jobs.values import (
    Claim,
    Completion,
    Failure,
    Garbage,
    Hint,
    NewArtifact,
    NewJob,
    NewStage,
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
from omni_jobs.views import (
    ArtifactView,
    AttemptErrorView,
    Counts,
    ErrorView,
    EventView,
    JobView,
    Page,
    ProgressView,
    StageCount,
    StageRunView,
    WorkerView,
)

__all__ = [
    "ArtifactView",
    "AttemptErrorView",
    "Claim",
    "Completion",
    "Counts",
    "ErrorView",
    "EventView",
    "Failure",
    "Garbage",
    "Hint",
    "JobView",
    "Jobs",
    "NewArtifact",
    "NewJob",
    "NewStage",
    "NewWorker",
    "Outcome",
    "Page",
    "ProgressReport",
    "ProgressView",
    "PruneResult",
    "RescueResult",
    "Retention",
    "SlotHolder",
    "StageCount",
    "StageRunView",
    "StoredArtifact",
    "SubmitResult",
    "WorkerView",
    "as_written",
    "new_job_id",
]


class Jobs:
    """Jobs, stage runs and workers in one database. Safe for threads.

    Every method may raise DatabaseUnavailable.
    """

    def __init__(
        self, db: Database, *, announce_after_s: float = 3.0, announce_at_most: int = 256, prune_after_s: float = 0.0
    ) -> None:
        """``announce_after_s``: how long a hint has before the rescuer repeats it.

        ``announce_at_most`` bounds the hints repeated per stage in one ``rescue``.
        ``prune_after_s``: for how long after its end nothing of a job that completed is due to go
        (``Retention.completed_s``); with less than that the pruner looks at it in vain.
        """
        self._db = db
        self._announce_after_s = announce_after_s
        self._announce_at_most = announce_at_most
        self._prune_after_s = prune_after_s
        self._announcing: announce.Places = {}

    # A job's life.

    def submit(self, job: NewJob, *, idempotency_key: str | None = None) -> SubmitResult:
        """Write the job with its stage runs, the first of them queued.

        A known ``idempotency_key`` of its tenant gives the job it named, with ``created`` False; raises
        Conflict (field ``Idempotency-Key``) when that was another request.
        """
        [answer] = self.submit_all([(job, idempotency_key)])
        if isinstance(answer, Conflict):
            raise answer
        return answer

    def submit_all(self, wishes: Sequence[tuple[NewJob, str | None]]) -> list[SubmitResult | Conflict]:
        """Jobs with their idempotency keys, in one transaction; answers in the same order.

        A key of another request gets its Conflict as its answer, and disturbs no other.
        """
        if not wishes:
            return []
        drafts = [draft(job, key) for job, key in wishes]
        return self._db.run_pipelined(partial(submit, drafts=drafts, announce_after_s=self._announce_after_s))

    def claim(self, worker_id: str, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        """Make stage runs this worker's: those of ``(stage_run_id, attempt)`` that are queued, due and untouched.

        What cannot be claimed is left out, silently: the hint was stale, or the job was submitted with
        another pipeline file than this worker has. A stage run that this worker claimed by the same hint
        before counts as claimed, so the call may be repeated after an error; pass no hint of a stage run
        you know you hold.
        Raises Fenced when the worker has no live lease.
        """
        return self._db.run_pipelined(partial(claim.claim, worker_id=worker_id, hints=hints))

    def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        """Record how far attempts are; those that no longer run are passed over."""
        self._db.run(partial(progress.report, reports=reports))

    def complete(self, completions: Sequence[Completion]) -> list[Outcome]:
        """Record attempts that reached their end, in one transaction; outcomes in the same order.

        Stage runs whose inputs are all there now are queued (``hints``), jobs without any left
        are completed. ``won`` is False when the attempt is not this worker's any more or its
        job is to stop: payload and artifacts are not recorded then.
        """
        return self._db.run_pipelined(partial(self._complete, completions=completions, ends_transaction=True))

    def complete_and_claim(
        self, completions: Sequence[Completion], worker_id: str, hints: Sequence[tuple[int, int]]
    ) -> tuple[list[Outcome], list[Claim]]:
        """Do ``complete`` and then ``claim`` in one transaction, and return the results of both.

        Raises Fenced like ``claim``; the completions may be recorded then.
        """

        def turn(tx: Connection) -> tuple[list[Outcome], list[Claim]]:
            return self._complete(tx, completions), claim.claim(tx, worker_id, hints)

        return self._db.run_pipelined(turn)

    def _complete(
        self, tx: Connection, completions: Sequence[Completion], ends_transaction: bool = False
    ) -> list[Outcome]:
        return complete.complete(
            tx,
            completions,
            announce_after_s=self._announce_after_s,
            prune_after_s=self._prune_after_s,
            ends_transaction=ends_transaction,
        )

    def fail(self, failure: Failure) -> Outcome:
        """Record an attempt's error. A retryable one with attempts left is queued again, due after
        a pause; else its job has failed.
        """
        return self._db.run(partial(complete.fail, failures=[failure], announce_after_s=self._announce_after_s))[0]

    def release(self, held: Sequence[tuple[int, int]], worker_id: str) -> list[Hint]:
        """Hand back attempts ``(stage_run_id, attempt)`` without an error: they are queued again."""
        outcomes = self._db.run(
            partial(complete.release, held=held, worker_id=worker_id, announce_after_s=self._announce_after_s)
        )
        return [hint for outcome in outcomes for hint in outcome.hints]

    def cancel(self, job_id: str) -> JobState:
        """Stop a job: what waits at once, what runs as soon as its worker knows. The job's state then.

        A job that has ended keeps its state. Raises NotFound.
        """
        return self._db.run(partial(complete.cancel, job_id=job_id, announce_after_s=self._announce_after_s))

    def retry(self, job_id: str, from_stage: str | None = None) -> list[Hint]:
        """Queue a job that has ended again: what did not succeed, or ``from_stage`` and all that follows it.

        It has no deadline any more, and its stages all their attempts again. Raises NotFound,
        InvalidRequest (``from_stage``), and Conflict while it has not ended or when what would
        be read is not kept any longer; the message then names the stage to retry from.
        """
        return self._db.run(
            partial(
                retry_job.retry,
                job_id=job_id,
                from_stage=from_stage,
                retry_token=secrets.token_hex(8),
                announce_after_s=self._announce_after_s,
            )
        )

    def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with all it made. Raises NotFound and Conflict."""
        self._db.run(partial(prune.delete_job, job_id=job_id))

    # A worker's life.

    def slot_holder(self, slot: str) -> SlotHolder | None:
        """The worker whose row is in this slot."""
        return self._db.read(partial(lease.holder, slot=slot))

    def register_worker(
        self, worker: NewWorker, lease_s: float, *, instead_of: SlotHolder | None = None, loading: bool = False
    ) -> list[Hint]:
        """Give a worker its slot and its lease; to be called before its first claim, and again when it has loaded.

        A predecessor in the same slot whose lease is over, or that is ``instead_of``, is fenced, and what it
        held is queued again at once. Raises SlotTaken when the slot is another's, or ``instead_of`` has
        renewed since it was seen. ``loading``: it holds the slot, and nobody counts on it yet.
        """
        return self._db.run(
            partial(
                lease.register,
                worker=worker,
                lease_s=lease_s,
                instead_of=instead_of,
                loading=loading,
                announce_after_s=self._announce_after_s,
            )
        )

    def renew(self, worker_id: str, lease_s: float) -> list[int]:
        """Prolong the lease; the ids of stage runs to stop: this worker runs them, their job has no use for them.

        Raises Fenced when the lease ran out or the slot has a new worker: stop, write nothing.
        """
        return self._db.run(partial(lease.renew, worker_id=worker_id, lease_s=lease_s))

    def unwanted(self, worker_id: str) -> list[int]:
        """What ``renew`` tells, without renewing."""
        return self._db.read(partial(lease.unwanted, worker_id=worker_id))

    def retire_worker(self, worker_id: str, *, fenced: Fenced | None = None) -> list[Hint]:
        """End the lease and hand back what is left. No error when the lease is gone already.

        ``fenced``: why the worker had to stop. Then what is left counts against its stage's ``fenced`` retries.
        """
        return self._db.run(
            partial(lease.retire, worker_id=worker_id, fenced=fenced, announce_after_s=self._announce_after_s)
        )

    def forgive(self, worker_id: str, stage_run_ids: Sequence[int]) -> None:
        """For a worker that was fenced and lives: that it was lost counts as ``fenced`` against these stage runs."""
        self._db.run(partial(lease.forgive, worker_id=worker_id, stage_run_ids=stage_run_ids))

    def rescue(self) -> RescueResult:
        """Take stage runs from workers whose lease ran out or who are unknown; expire jobs whose time is
        over; hint again what waits unhinted.

        May run in several processes at once.
        """
        self._db.run(lease.expire)
        freed, hints = 0, []
        while True:
            found, found_hints = self._db.run(partial(lease.free_lost, announce_after_s=self._announce_after_s))
            freed += found
            hints += found_hints
            if found < lease.FREED_AT_ONCE:
                break
        expired = 0
        while True:
            found = self._db.run(partial(expire.expire_late, announce_after_s=self._announce_after_s))
            expired += found
            if found < expire.EXPIRED_AT_ONCE:
                break
        hints += self._db.run(
            partial(
                announce.announce,
                at_most=self._announce_at_most,
                announce_after_s=self._announce_after_s,
                places=self._announcing,
            )
        )
        return RescueResult(freed, hints, expired)

    # What is kept, and for how long.

    def prune(self, keep: Retention, at_most: int = 500) -> PruneResult:
        """Forget what has been kept long enough of up to ``at_most`` jobs that have ended, and as many events."""
        return self._db.run(partial(prune.prune, retention=keep, at_most=at_most))

    def garbage(self, at_most: int = 500) -> Sequence[Garbage]:
        """Objects to delete, the oldest first; tell ``collected`` when they are."""
        return self._db.read(partial(prune.garbage, at_most=at_most))

    def collected(self, ids: Sequence[int]) -> None:
        """The garbage of these ids is deleted."""
        self._db.run(partial(prune.collected, ids=ids))

    def orphans(self, keys: Sequence[str]) -> set[str]:
        """Those of these keys of the object store that nothing refers to or will; leave young objects out."""
        return self._db.read(partial(prune.orphans, keys=keys))

    # What readers see.

    def get(self, job_id: str) -> JobView:
        """Raises NotFound."""
        return self._db.read(partial(job_view.job_view, job_id=job_id))

    def unfinished(self, job_ids: Sequence[str]) -> set[str]:
        """Those of these jobs that are there and have not ended."""
        return self._db.read(partial(job_view.unfinished, job_ids=job_ids))

    def is_known(self, tenant: str, idempotency_key: str) -> bool:
        """Whether a submit of this tenant with this key would give a job that is there."""
        return self._db.read(partial(job_view.is_known, tenant=tenant, idempotency_key=idempotency_key))

    def list(
        self,
        limit: int = 20,
        cursor: str | None = None,
        state: JobState | None = None,
        pipeline: str | None = None,
        error_code: str | None = None,
        brief: bool = False,
    ) -> Page:
        """Jobs, the newest first; ``cursor`` from the page before. Raises InvalidRequest.

        A page ends early, with its cursor, where the texts of its jobs come to 2 MiB. ``brief``:
        without results.
        """
        return self._db.read(
            partial(
                job_list.job_list,
                limit=limit,
                cursor=cursor,
                state=state,
                pipeline=pipeline,
                error_code=error_code,
                brief=brief,
            )
        )

    def events(self, job_id: str) -> Sequence[EventView]:
        """What became of a job, the oldest first. Raises NotFound."""
        return self._db.read(partial(job_view.events, job_id=job_id))

    def artifact(self, job_id: str, name: str) -> StoredArtifact:
        """Where an artifact is stored. Raises NotFound, and Gone after its time."""
        return self._db.read(partial(job_view.artifact, job_id=job_id, name=name))

    def counts(self) -> Counts:
        """How much waits and runs."""
        return self._db.read(counts.counts)

    def backlog(self) -> dict[tuple[str, str], int]:
        """How many jobs nobody has started, by (pipeline, tenant)."""
        return self._db.read(counts.queued_jobs)

    def waiting(self, pipeline: str, stage: str, at_most: int = 1000) -> int:
        """How many stage runs of a stage could be claimed now, counted up to ``at_most``."""
        return self._db.read(partial(counts.claimable, pipeline=pipeline, stage=stage, at_most=at_most))

    def workers(self) -> Sequence[WorkerView]:
        """The workers with live lease."""
        return self._db.read(worker_views.workers)
