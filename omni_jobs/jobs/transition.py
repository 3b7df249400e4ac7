"""Some jobs, locked: every end of a running stage run, and what follows from it, goes through here.

Lock order, everywhere: worker rows, then job rows by id, then stage runs by id. Whoever
ends a running stage run holds its job's lock, so two inputs of one stage that end at
once queue it once. A claim takes the lock only of jobs nobody has started. Claims,
announcements and progress skip stage runs that are locked: they wait for none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    func,
    null,
    or_,
    select,
    true,
    type_coerce,
    update,
)

from omni_jobs.database.batch import Batch, Given, among, listed, one_of, run_all
from omni_jobs.database.clock import now
from omni_jobs.database.statement import Call, Statement, execute_pipelined
from omni_jobs.database.tables import (
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    GarbageRow,
    JobRow,
    Seconds,
    StageRunRow,
    encode_json,
    literal,
    state_seen,
)
from omni_jobs.errors import Expired, OmniJobsError, Quarantined
from omni_jobs.jobs.graph import Run, next_step, unneeded_payloads
from omni_jobs.jobs.values import Completion, Hint
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits, retry_after
from omni_jobs.states import JobState, StageRunState

__all__ = ["LockedJobs"]

_NONE: Mapping[str, int] = MappingProxyType({})
_HARM = {"worker_lost": "were lost", "fenced": "were cut off from their leases"}  # beyond the limit: quarantined
_JOB_STATES = {state.value: state for state in JobState}
_STAGE_RUN_STATES = {state.value: state for state in StageRunState}
_first = itemgetter(0)

_ids = bindparam("ids", type_=Text)
_JOB_IDS = select(StageRunRow.job_id).where(one_of(StageRunRow.id, _ids))
_LOCK = (
    select(JobRow.id, JobRow.state, JobRow.ending, now().label("now"))
    .order_by(JobRow.id)
    .with_for_update(key_share=True)
)
_LOCK_JOBS = Statement(_LOCK.where(one_of(JobRow.id, _ids)))
_LOCK_JOBS_OF_STAGE_RUNS = Statement(_LOCK.where(JobRow.id.in_(_JOB_IDS)))
# JSON as text: nearly all of it is alike from row to row.
_STAGE_RUNS = select(  # in no order: for it PostgreSQL might walk the whole primary key
    StageRunRow.id,
    StageRunRow.job_id,
    StageRunRow.stage,
    StageRunRow.queue,
    type_coerce(StageRunRow.inputs, Text),
    StageRunRow.state,
    StageRunRow.attempt,
    type_coerce(StageRunRow.failures, Text),
    type_coerce(StageRunRow.retries, Text),
    StageRunRow.owner,
    StageRunRow.payload_bytes,
    type_coerce(StageRunRow.payload_ref, Text),
    StageRunRow.payload_gone,
)
_STAGE_RUNS_OF_JOBS = Statement(_STAGE_RUNS.where(one_of(StageRunRow.job_id, _ids)))
_STAGE_RUNS_BESIDE = Statement(_STAGE_RUNS.where(among(StageRunRow.job_id, _JOB_IDS)))  # all of the jobs of some


def _is_running(given: Given) -> tuple[ColumnElement[bool], ...]:
    return (
        StageRunRow.id == given["run"],
        StageRunRow.attempt == given["of_attempt"],
        state_seen(StageRunRow.state, StageRunState.RUNNING),
    )


_SUCCEED_IF_RUNNING = Batch.update(
    StageRunRow.id,
    {
        "run": BigInteger,
        "of_attempt": Integer,
        "its_result": Text,
        "its_payload_ref": Text,
        "its_payload_inline": LargeBinary,
        "its_payload_bytes": BigInteger,
        "its_finish_reason": Text,
        "its_warnings": Text,
        "at": Seconds,
    },
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(
            state=literal(StageRunState.SUCCEEDED),
            result=given["its_result"],
            payload_ref=given["its_payload_ref"],
            payload_inline=given["its_payload_inline"],
            payload_bytes=given["its_payload_bytes"],
            finish_reason=given["its_finish_reason"],
            warnings=given["its_warnings"],
            finished_at=given["at"],
        )
    ),
)
_END_IF_RUNNING = Batch.update(
    StageRunRow.id,
    {"run": BigInteger, "of_attempt": Integer, "to": Text, "so_many": Text, "at": Seconds},
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(state=given["to"], failures=given["so_many"], finished_at=given["at"])
    ),
)
_REQUEUE_IF_RUNNING = Batch.update(
    StageRunRow.id,
    {
        "run": BigInteger,
        "of_attempt": Integer,
        "so_many": Text,
        "from_when": Seconds,
        "announce": Seconds,
        "why": Text,
    },
    lambda given: (
        update(StageRunRow)
        .where(*_is_running(given))
        .values(
            state=literal(StageRunState.QUEUED),
            owner=null(),
            failures=given["so_many"],
            due=given["from_when"],
            announce_at=given["announce"],
            queue_deadline=given["from_when"] + StageRunRow.queue_limit_s,
            reason=given["why"],
            progress=null(),
        )
    ),
)
_QUEUE_IF_PENDING = Batch.update(
    StageRunRow.id,
    {"run": BigInteger, "at": Seconds, "announce": Seconds},
    lambda given: (
        update(StageRunRow)
        .where(StageRunRow.id == given["run"], state_seen(StageRunRow.state, StageRunState.PENDING))
        .values(
            state=literal(StageRunState.QUEUED),
            queued_at=given["at"],
            due=given["at"],
            announce_at=given["announce"],
            queue_deadline=given["at"] + StageRunRow.queue_limit_s,
        )
    ),
)
_CANCEL_IF_WAITING = (
    update(StageRunRow)
    .where(
        one_of(StageRunRow.id, _ids),
        StageRunRow.state.in_([StageRunState.PENDING.value, StageRunState.QUEUED.value]),
    )
    .values(state=StageRunState.CANCELLED.value, finished_at=bindparam("at"), reason=None)
)
_SET_JOB = Batch.update(
    JobRow.id,
    {
        "job": Text,
        "to": Text,
        "in_the_end": Text,
        "why": Text,
        "code": Text,
        "at": Seconds,
        "look_at": Seconds,
        "no_payloads": Boolean,
    },
    lambda given: (
        update(JobRow)
        .where(JobRow.id == given["job"])
        .values(
            state=given["to"],
            ending=given["in_the_end"],
            error=func.coalesce(given["why"], JobRow.error),  # cancelling keeps it for the end
            error_code=func.coalesce(given["code"], JobRow.error_code),
            finished_at=given["at"],
            prune_at=given["look_at"],
            payloads_gone=or_(JobRow.payloads_gone, given["no_payloads"]),
        )
    ),
)
_FORGET_PAYLOAD = Batch.update(
    StageRunRow.id,
    {"run": BigInteger},
    lambda given: (
        update(StageRunRow)
        .where(StageRunRow.id == given["run"])
        .values(payload_ref=null(), payload_inline=null(), payload_gone=true())
    ),
)
_NEW_EVENT = Batch.insert(EventRow, {"job_id": Text, "type": Text, "data": Text, "at": Seconds})
_NEW_ERROR = Batch.insert(
    AttemptErrorRow, {"stage_run_id": BigInteger, "attempt": Integer, "worker": Text, "error": Text, "at": Seconds}
)
_NEW_ARTIFACT = Batch.insert(
    ArtifactRow,
    {
        "job_id": Text,
        "name": Text,
        "stage_run_id": BigInteger,
        "media_type": Text,
        "ref": Text,
        "created_at": Seconds,
    },
)
_NEW_GARBAGE = Batch.insert(GarbageRow, {"job_id": Text, "what": Text})


class LockedJobs:
    """Jobs locked until the transaction ends, and all their stage runs.

    ``succeed``, ``fail``, ``hand_back`` note what became of running stage runs;
    ``settle`` writes it down, with everything that follows, in a few statements
    however many jobs there are.
    """

    def __init__(self, tx: Connection, job_ids: Sequence[str], *, announce_after_s: float) -> None:
        """Those of these jobs that there are."""
        self._lock(tx, _LOCK_JOBS, _STAGE_RUNS_OF_JOBS, job_ids, announce_after_s)

    @classmethod
    def of_stage_runs(cls, tx: Connection, ids: Iterable[int], *, announce_after_s: float) -> Self:
        """The jobs that these stage runs belong to."""
        jobs = cls.__new__(cls)
        jobs._lock(tx, _LOCK_JOBS_OF_STAGE_RUNS, _STAGE_RUNS_BESIDE, ids, announce_after_s)
        return jobs

    def _lock(
        self, tx: Connection, lock: Statement, read: Statement, ids: Iterable[Any], announce_after_s: float
    ) -> None:
        # Each sees what is committed when it begins: the second, all that the first has waited for.
        these = {"ids": listed(ids)}
        locked, runs = execute_pipelined(tx, [(lock, these), (read, these)])
        self._tx = tx
        self._announce_after_s = announce_after_s
        self.now: float = locked[0][-1] if locked else 0.0
        self._stored = {job_id: _JOB_STATES[state] for job_id, state, _, _ in locked}
        self._endings = {job_id: _JOB_STATES[ending] for job_id, _, ending, _ in locked if ending is not None}
        self.states: dict[str, JobState] = dict(self._stored)
        self.runs: dict[int, Run] = {}
        self._runs_of_job: dict[str, list[Run]] = {}
        self._take_runs(runs)
        self._succeeded: list[tuple[Any, ...]] = []
        self._succeeded_runs: list[Run] = []
        self._ended: list[tuple[Any, ...]] = []
        self._requeued: list[tuple[Any, ...]] = []
        self._delayed: set[int] = set()
        self._errors: list[tuple[Any, ...]] = []
        self._artifacts: list[tuple[Any, ...]] = []
        self._job_errors: dict[str, Mapping[str, Any]] = {}

    def _take_runs(self, rows: Iterable[Sequence[Any]]) -> None:
        self._runs_of_job = {job_id: [] for job_id in self.states}
        for id_, job_id, stage, queue, inputs, state, attempt, failures, retries, *rest in sorted(rows, key=_first):
            if job_id not in self.states:  # written since the jobs were locked
                continue
            owner, payload_bytes, ref, gone = rest
            run = Run(
                id_,
                job_id,
                stage,
                queue,
                _names(inputs),
                _STAGE_RUN_STATES[state],
                attempt,
                _NONE if failures is None else json.loads(failures),
                _limits(retries),
                owner,
                payload_bytes,
                None if ref is None else json.loads(ref)["key"],
                gone,
            )
            self.runs[id_] = run
            self._runs_of_job[job_id].append(run)

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
        run.payload_bytes = completion.payload_bytes
        run.payload_key = None if ref is None else ref.key
        self._succeeded_runs.append(run)
        self._succeeded.append(
            (
                run.id,
                run.attempt,
                completion.result_json,
                None if ref is None else ref.model_dump_json(),
                completion.inline_payload,
                completion.payload_bytes,
                completion.finish_reason,
                encode_json([dict(each) for each in completion.warnings]) if completion.warnings else None,
                self.now,
            )
        )
        self._artifacts.extend(
            (run.job_id, artifact.name, run.id, artifact.media_type, artifact.ref.model_dump_json(), self.now)
            for artifact in completion.artifacts
        )

    def fail(self, run: Run, error: OmniJobsError) -> None:
        """A running stage run ended in an error: tried again, failed for good, or cancelled with its job."""
        retry_class = error.retry_class or "other"
        run.failures = {**run.failures, retry_class: run.failures.get(retry_class, 0) + 1}
        found = error.to_dict()
        found.setdefault("stage", run.stage)
        self._errors.append((run.id, run.attempt, run.owner or "", encode_json(found), self.now))
        retry = retry_after(error, run.failures, run.retries)
        if not self.is_active(run):
            self._end(run, StageRunState.CANCELLED)
        elif retry is not None:
            self._requeue(run, retry.delay_s)
        else:
            if retry_class in _HARM:
                found = Quarantined(
                    f"{run.failures[retry_class]} workers {_HARM[retry_class]} while they ran this; "
                    f"the last: {error.message}",
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
        announce = due if delay_s else due + self._announce_after_s
        why = "retry_backoff" if delay_s else None
        self._requeued.append((run.id, run.attempt, _failures(run), due, announce, why))
        if delay_s:
            self._delayed.add(run.id)

    def _end(self, run: Run, state: StageRunState) -> None:
        run.state = state
        self._ended.append((run.id, run.attempt, state.value, _failures(run), self.now))

    def stop(self, errors: Mapping[str, Expired | None]) -> None:
        """These active jobs are to stop: what waits is cancelled, what runs is asked to end.

        With an error the job will have expired, without one it is cancelled.
        """
        waiting = [run.id for job_id in errors for run in self._runs_of_job[job_id] if not run.state.is_final]
        self._tx.execute(_CANCEL_IF_WAITING, {"ids": listed(waiting), "at": self.now})
        runs = _STAGE_RUNS_OF_JOBS.rows(self._tx, {"ids": listed(self.states)})  # a claim may have come first
        self._take_runs(runs)
        for job_id, error in errors.items():
            self.states[job_id] = JobState.CANCELLING
            self._endings[job_id] = JobState.CANCELLED if error is None else JobState.EXPIRED
            if error is not None:
                self._job_errors[job_id] = error.to_dict()

    def settle(
        self, *, prune_after_s: float = 0.0, then: Sequence[Call] = (), commit: bool = False
    ) -> list[list[tuple[Any, ...]]]:
        """Write all that was noted; queue what can go on, finish what is done. ``runs`` and ``states`` follow.

        ``prune_after_s``: for how long after its end nothing of a job that completed is due to go.
        ``then``: what else to run, for its rows; ``commit``: nothing follows in this transaction.
        """
        to_queue: list[Run] = []
        to_cancel: list[Run] = []
        changes: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for job_id, stored in self._stored.items():
            ending = self._endings.get(job_id, JobState.CANCELLED)
            step = next_step(self.states[job_id], self._runs_of_job[job_id], ending)
            to_queue += step.queue
            to_cancel += step.cancel
            to = step.job_state
            self.states[job_id] = to
            if to != stored:
                error = self._job_errors.get(job_id)
                why, code = (None, None) if error is None else (encode_json(error), error["code"])
                in_the_end = ending.value if to == JobState.CANCELLING else None
                at = look_at = self.now if to.is_final else None
                # Of a job that completed payloads are no use; only an attempt that was lost may have left some.
                no_payloads = to == JobState.COMPLETED and all(run.attempt == 1 for run in self._runs_of_job[job_id])
                if no_payloads:
                    look_at = self.now + prune_after_s
                changes.append((job_id, to.value, in_the_end, why, code, at, look_at, int(no_payloads)))
                data = "{}" if error is None else encode_json({"error": error})
                events.append((job_id, f"job.{to.value}", data, self.now))
        announce = self.now + self._announce_after_s
        unneeded = self._unneeded_payloads()
        ended = (
            (_SUCCEED_IF_RUNNING, self._succeeded),
            (_END_IF_RUNNING, self._ended),
            (_REQUEUE_IF_RUNNING, self._requeued),
        )
        for _, rows in ended:
            rows.sort(key=_first)
        found = run_all(
            self._tx,
            (
                *ended,
                (_SET_JOB, changes),
                (_NEW_EVENT, events),
                (_NEW_ERROR, self._errors),
                (_NEW_ARTIFACT, self._artifacts),
                (_QUEUE_IF_PENDING, [(run.id, self.now, announce) for run in to_queue]),
                (_FORGET_PAYLOAD, [(run.id,) for run in unneeded]),
                (_NEW_GARBAGE, [(run.job_id, run.payload_key) for run in unneeded if run.payload_key is not None]),
            ),
            exact=len(ended),
            then=() if to_cancel else then,
            commit=commit and not to_cancel,
        )
        if to_cancel:  # what was queued again a moment ago may be among them; nobody is to claim it before
            self._tx.execute(_CANCEL_IF_WAITING, {"ids": listed(run.id for run in to_cancel), "at": self.now})
            found = execute_pipelined(self._tx, then, commit=commit)
        for run in to_queue:
            run.state = StageRunState.QUEUED
        for run in to_cancel:
            run.state = StageRunState.CANCELLED
        return found

    def _unneeded_payloads(self) -> list[Run]:
        """Whose payloads no stage needs any more: of jobs that completed, and large ones all stages have taken."""
        unneeded: list[Run] = []
        just_made = {run.id for run in self._succeeded_runs}  # nobody can have taken them yet
        for job_id in {run.job_id for run in self._succeeded_runs if run.inputs}:
            runs = self._runs_of_job[job_id]
            if self.states[job_id] == JobState.COMPLETED:
                unneeded += [run for run in runs if run.has_payload]
            else:
                unneeded += unneeded_payloads(runs)
        return [run for run in unneeded if run.id not in just_made]

    def hints(self, runs: Iterable[Run]) -> list[Hint]:
        """What to publish for those of ``runs`` that may be claimed at once."""
        return [run.hint for run in runs if run.state == StageRunState.QUEUED and run.id not in self._delayed]


@lru_cache(maxsize=1024)
def _names(inputs: str) -> tuple[str, ...]:
    return tuple(json.loads(inputs))


@lru_cache(maxsize=1024)
def _limits(retries: str | None) -> RetryLimits:
    return DEFAULT_RETRIES if retries is None else RetryLimits(**json.loads(retries))


def _failures(run: Run) -> str | None:
    return encode_json(run.failures) if run.failures else None
