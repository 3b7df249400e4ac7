"""Some jobs, locked: every end of a running stage run, and what follows from it, goes through here.

Lock order, everywhere: worker rows, then job rows by id, then stage runs by id. Whoever
ends a running stage run holds its job's lock, so two inputs of one stage that end at
once queue it once. A claim takes the lock only of jobs nobody has started. Claims,
announcements and progress skip stage runs that are locked: they wait for none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, insert, select, update

from omni_jobs.db import now
from omni_jobs.errors import Expired, OmniJobsError, Quarantined
from omni_jobs.jobs.graph import Run, next_step, unneeded_payloads
from omni_jobs.jobs.values import Completion, Hint
from omni_jobs.models import (
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    GarbageRow,
    JobRow,
    JsonText,
    Seconds,
    StageRunRow,
    state_seen,
)
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits, retry_after
from omni_jobs.states import JobState, StageRunState

__all__ = ["LockedJobs"]

_STAGE_RUNS_OF_JOBS = (
    select(
        StageRunRow.id,
        StageRunRow.job_id,
        StageRunRow.stage,
        StageRunRow.queue,
        StageRunRow.inputs,
        StageRunRow.state,
        StageRunRow.attempt,
        StageRunRow.failures,
        StageRunRow.retries,
        StageRunRow.queue_limit_s,
        StageRunRow.owner,
        StageRunRow.payload_ref,
        StageRunRow.payload_gone,
    )
    .where(StageRunRow.job_id.in_(bindparam("jobs", expanding=True)))
    .order_by(StageRunRow.id)
)

_IF_RUNNING = (
    (StageRunRow.id == bindparam("run")),
    (StageRunRow.attempt == bindparam("of_attempt")),
    state_seen(StageRunRow.state, StageRunState.RUNNING),
)
_SUCCEED_IF_RUNNING = (
    update(StageRunRow)
    .where(*_IF_RUNNING)
    .values(
        state=StageRunState.SUCCEEDED.value,
        result=bindparam("its_result"),
        payload_ref=bindparam("its_payload_ref"),
        payload_inline=bindparam("its_payload_inline"),
        payload_bytes=bindparam("its_payload_bytes"),
        finished_at=bindparam("at"),
    )
)
_END_IF_RUNNING = (
    update(StageRunRow)
    .where(*_IF_RUNNING)
    .values(state=bindparam("to"), failures=bindparam("so_many"), finished_at=bindparam("at"))
)
_REQUEUE_IF_RUNNING = (
    update(StageRunRow)
    .where(*_IF_RUNNING)
    .values(
        state=StageRunState.QUEUED.value,
        owner=None,
        failures=bindparam("so_many"),
        due=bindparam("from_when"),
        announce_at=bindparam("announce"),
        queue_deadline=bindparam("from_when", type_=Seconds) + StageRunRow.queue_limit_s,
        reason=bindparam("why"),
        progress=None,
    )
)
_QUEUE_IF_PENDING = (
    update(StageRunRow)
    .where(
        StageRunRow.id.in_(bindparam("ids", expanding=True)),
        state_seen(StageRunRow.state, StageRunState.PENDING),
    )
    .values(
        state=StageRunState.QUEUED.value,
        queued_at=bindparam("at"),
        due=bindparam("at"),
        announce_at=bindparam("announce"),
        queue_deadline=bindparam("at", type_=Seconds) + StageRunRow.queue_limit_s,
    )
)
_CANCEL_IF_WAITING = (
    update(StageRunRow)
    .where(
        StageRunRow.id.in_(bindparam("ids", expanding=True)),
        StageRunRow.state.in_([StageRunState.PENDING.value, StageRunState.QUEUED.value]),
    )
    .values(state=StageRunState.CANCELLED.value, finished_at=bindparam("at"), reason=None)
)
_SET_JOB = (
    update(JobRow)
    .where(JobRow.id == bindparam("job"))
    .values(
        state=bindparam("to"),
        ending=bindparam("in_the_end"),
        error=func.coalesce(bindparam("why", type_=JsonText), JobRow.error),  # cancelling keeps it for the end
        error_code=func.coalesce(bindparam("code"), JobRow.error_code),
        finished_at=bindparam("at"),
        prune_at=bindparam("at"),
    )
)
_FORGET_PAYLOAD = (
    update(StageRunRow).where(StageRunRow.id == bindparam("run")).values(payload_ref=None, payload_gone=True)
)


class LockedJobs:
    """Jobs locked until the transaction ends, and all their stage runs.

    ``succeed``, ``fail``, ``hand_back`` note what became of running stage runs;
    ``settle`` writes it down, with everything that follows, in a few statements
    however many jobs there are.
    """

    def __init__(self, tx: Connection, job_ids: Select[str] | Sequence[str], *, announce_after_s: float) -> None:
        self._tx = tx
        self._announce_after_s = announce_after_s
        locked = tx.execute(
            select(JobRow.id, JobRow.state, JobRow.ending, now().label("now"))
            .where(JobRow.id.in_(job_ids))
            .order_by(JobRow.id)
            .with_for_update(key_share=True)
        ).all()
        self.now: float = locked[0].now if locked else 0.0
        self._stored = {row.id: JobState(row.state) for row in locked}
        self._endings = {row.id: JobState(row.ending) for row in locked if row.ending is not None}
        self.states: dict[str, JobState] = dict(self._stored)
        self.runs: dict[int, Run] = {}
        self._runs_of_job: dict[str, list[Run]] = {}
        self._read_runs()
        self._succeeded: list[dict[str, Any]] = []
        self._succeeded_runs: list[Run] = []
        self._ended: list[dict[str, Any]] = []
        self._requeued: list[dict[str, Any]] = []
        self._errors: list[dict[str, Any]] = []
        self._artifacts: list[dict[str, Any]] = []
        self._job_errors: dict[str, Mapping[str, Any]] = {}

    @classmethod
    def of_stage_runs(cls, tx: Connection, ids: Iterable[int], *, announce_after_s: float) -> LockedJobs:
        """The jobs that these stage runs belong to."""
        jobs = select(StageRunRow.job_id).where(StageRunRow.id.in_(sorted(set(ids))))
        return cls(tx, jobs, announce_after_s=announce_after_s)

    def _read_runs(self) -> None:
        self._runs_of_job = {job_id: [] for job_id in self.states}
        if not self.states:
            return
        for row in self._tx.execute(_STAGE_RUNS_OF_JOBS, {"jobs": list(self.states)}):
            run = Run(
                id=row.id,
                job_id=row.job_id,
                stage=row.stage,
                queue=row.queue,
                inputs=tuple(row.inputs),
                state=StageRunState(row.state),
                attempt=row.attempt,
                failures=row.failures or {},
                retries=DEFAULT_RETRIES if row.retries is None else RetryLimits(**row.retries),
                queue_limit_s=row.queue_limit_s,
                owner=row.owner,
                payload_key=None if row.payload_ref is None else row.payload_ref["key"],
                payload_gone=row.payload_gone,
            )
            self.runs[run.id] = run
            self._runs_of_job[run.job_id].append(run)

    def runs_of(self, job_id: str) -> Sequence[Run]:
        return self._runs_of_job[job_id]

    def held(self, stage_run_id: int, attempt: int, worker_id: str) -> Run | None:
        """The stage run, if this attempt of it still runs at this worker."""
        run = self.runs.get(stage_run_id)
        if run is None or run.state != StageRunState.RUNNING or run.attempt != attempt or run.owner != worker_id:
            return None
        return run

    def is_active(self, run: Run) -> bool:
        """Whether its job still wants what this stage run makes."""
        state = self.states[run.job_id]
        return state in (JobState.QUEUED, JobState.IN_PROGRESS) and run.job_id not in self._job_errors

    def succeed(self, run: Run, completion: Completion) -> None:
        """A running stage run of an active job reached its end."""
        run.state = StageRunState.SUCCEEDED
        ref = completion.payload
        run.payload_key = None if ref is None else ref.key
        self._succeeded_runs.append(run)
        self._succeeded.append(
            {
                "run": run.id,
                "of_attempt": run.attempt,
                "its_result": dict(completion.result),
                "its_payload_ref": None if ref is None else ref.model_dump(mode="json"),
                "its_payload_inline": completion.inline_payload,
                "its_payload_bytes": completion.payload_bytes,
                "at": self.now,
            }
        )
        self._artifacts.extend(
            {
                "job_id": run.job_id,
                "name": artifact.name,
                "stage_run_id": run.id,
                "media_type": artifact.media_type,
                "ref": artifact.ref.model_dump(mode="json"),
                "created_at": self.now,
            }
            for artifact in completion.artifacts
        )

    def fail(self, run: Run, error: OmniJobsError) -> None:
        """A running stage run ended in an error: tried again, failed for good, or cancelled with its job."""
        retry_class = error.retry_class or "other"
        run.failures = {**run.failures, retry_class: run.failures.get(retry_class, 0) + 1}
        found = error.to_dict()
        found.setdefault("stage", run.stage)
        self._errors.append(
            {
                "stage_run_id": run.id,
                "attempt": run.attempt,
                "worker": run.owner or "",
                "error": found,
                "at": self.now,
            }
        )
        retry = retry_after(error, run.failures, run.retries)
        if not self.is_active(run):
            self._end(run, StageRunState.CANCELLED)
        elif retry is not None:
            self._requeue(run, retry.delay_s)
        else:
            if retry_class == "worker_lost":
                found = Quarantined(
                    f"{run.failures[retry_class]} workers were lost while they ran this; the last: {error.message}",
                    stage=run.stage,
                ).to_dict()
            self._job_errors[run.job_id] = found
            self._end(run, StageRunState.FAILED)

    def hand_back(self, run: Run) -> None:
        """A running stage run was given up without an error: queued again, or cancelled with its job."""
        if self.is_active(run):
            self._requeue(run, 0.0)
        else:
            self._end(run, StageRunState.CANCELLED)

    def _requeue(self, run: Run, delay_s: float) -> None:
        run.state = StageRunState.QUEUED
        run.owner = None
        due = self.now + delay_s
        self._requeued.append(
            {
                "run": run.id,
                "of_attempt": run.attempt,
                "so_many": run.failures or None,
                "from_when": due,
                "announce": due if delay_s else due + self._announce_after_s,
                "why": "retry_backoff" if delay_s else None,
            }
        )

    def _end(self, run: Run, state: StageRunState) -> None:
        run.state = state
        self._ended.append(
            {
                "run": run.id,
                "of_attempt": run.attempt,
                "to": state.value,
                "so_many": run.failures or None,
                "at": self.now,
            }
        )

    def stop(self, errors: Mapping[str, Expired | None]) -> None:
        """These active jobs are to stop: what waits is cancelled, what runs is asked to end.

        With an error the job will have expired, without one it is cancelled.
        """
        waiting = [run.id for job_id in errors for run in self._runs_of_job[job_id] if not run.state.is_final]
        self._tx.execute(_CANCEL_IF_WAITING, {"ids": waiting, "at": self.now})
        self._read_runs()  # a claim may have come first
        for job_id, error in errors.items():
            self.states[job_id] = JobState.CANCELLING
            self._endings[job_id] = JobState.CANCELLED if error is None else JobState.EXPIRED
            if error is not None:
                self._job_errors[job_id] = error.to_dict()

    def settle(self) -> None:
        """Write all that was noted; queue what can go on, finish what is done. ``runs`` and ``states`` follow."""
        to_queue: list[Run] = []
        to_cancel: list[Run] = []
        job_changes: list[dict[str, Any]] = []
        for job_id, stored in self._stored.items():
            ending = self._endings.get(job_id, JobState.CANCELLED)
            step = next_step(self.states[job_id], self._runs_of_job[job_id], ending)
            to_queue += step.queue
            to_cancel += step.cancel
            self.states[job_id] = step.job_state
            if step.job_state != stored:
                error = self._job_errors.get(job_id)
                job_changes.append(
                    {
                        "job": job_id,
                        "to": step.job_state.value,
                        "in_the_end": ending.value if step.job_state == JobState.CANCELLING else None,
                        "why": error,
                        "code": None if error is None else error["code"],
                        "at": self.now if step.job_state.is_final else None,
                    }
                )
        if job_changes:
            self._tx.execute(_SET_JOB, job_changes)
            self._tx.execute(insert(EventRow), [self._event(change) for change in job_changes])
        for guarded, changes in (
            (_SUCCEED_IF_RUNNING, self._succeeded),
            (_END_IF_RUNNING, self._ended),
            (_REQUEUE_IF_RUNNING, self._requeued),
        ):
            if changes:
                changes.sort(key=itemgetter("run"))
                changed = self._tx.execute(guarded, changes).rowcount
                if changed != len(changes):
                    raise RuntimeError(f"{len(changes) - changed} stage runs changed under their job's lock")
        if self._errors:
            self._tx.execute(insert(AttemptErrorRow), self._errors)
        if self._artifacts:
            self._tx.execute(insert(ArtifactRow), self._artifacts)
        self._forget_payloads()
        if to_queue:
            announce = self.now + self._announce_after_s
            ids = [run.id for run in to_queue]
            self._tx.execute(_QUEUE_IF_PENDING, {"ids": ids, "at": self.now, "announce": announce})
        if to_cancel:
            self._tx.execute(_CANCEL_IF_WAITING, {"ids": [run.id for run in to_cancel], "at": self.now})
        for run in to_queue:
            run.state = StageRunState.QUEUED
        for run in to_cancel:
            run.state = StageRunState.CANCELLED

    def _event(self, change: Mapping[str, Any]) -> dict[str, Any]:
        data = {} if change["why"] is None else {"error": change["why"]}
        return {"job_id": change["job"], "type": f"job.{change['to']}", "data": data, "at": self.now}

    def _forget_payloads(self) -> None:
        """Payloads in the object store that no stage needs any more become garbage."""
        succeeded: dict[str, list[Run]] = defaultdict(list)
        for run in self._succeeded_runs:
            if run.inputs:
                succeeded[run.job_id].append(run)
        unneeded = [
            run for job_id, runs in succeeded.items() for run in unneeded_payloads(runs, self._runs_of_job[job_id])
        ]
        if unneeded:
            self._tx.execute(_FORGET_PAYLOAD, [{"run": run.id} for run in unneeded])
            self._tx.execute(insert(GarbageRow), [{"job_id": run.job_id, "what": run.payload_key} for run in unneeded])

    def hints(self, runs: Iterable[Run]) -> list[Hint]:
        """What to publish for those of ``runs`` that may be claimed at once."""
        delayed = {change["run"] for change in self._requeued if change["why"] is not None}
        return [run.hint for run in runs if run.state == StageRunState.QUEUED and run.id not in delayed]
