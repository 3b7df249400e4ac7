"""``JobTransition``: changes some jobs under a lock. Every end of a running stage run goes through here.

The lock order is the same everywhere: worker rows, then job rows by id, then stage runs by id, then tenants by name,
then their rows of stored bytes, then those of usage.
Whoever ends a running stage run holds its job's lock, so two inputs of one stage that end at once queue that stage
once. A claim takes no lock of a job that it must wait for. Claims and progress skip rows that are locked, so they wait
for nobody.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import Connection

from omni_jobs.database.statement import BulkStatement, Rows, Statements, execute_pipelined, listed, run_all
from omni_jobs.database.tables import decode_json, encode_json
from omni_jobs.errors import Expired, NotFound, OmniJobsError, Quarantined
from omni_jobs.jobs.keep import stored_bytes, usage
from omni_jobs.jobs.keep.garbage import INSERT_GARBAGE
from omni_jobs.jobs.keep.retention import leaves_no_payloads
from omni_jobs.jobs.life.fingerprint import fingerprint
from omni_jobs.jobs.life.noted_changes import note
from omni_jobs.jobs.life.successors import ACTIVE, Run, next_step, retry_limits, stage_names, unneeded_payloads
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.values import Change, Completion, StepSeconds, StoredSnapshot
from omni_jobs.retry import is_last_chance, retry_delay
from omni_jobs.states import JobState, StageRunState

_sql = Statements(__file__)
# The names say the guard: _COMPLETE_IF_RUNNING changes a stage run only while it runs the row's attempt.
_COMPLETE_IF_RUNNING = _sql.bulk(
    "complete_if_running",
    "stage_run held_attempt result payload_ref payload_inline payload_bytes finish_reason warnings at usage steps",
)
_END_IF_RUNNING = _sql.bulk("end_if_running", "stage_run held_attempt state failures at usage steps")
_REQUEUE_IF_RUNNING = _sql.bulk("requeue_if_running", "stage_run held_attempt failures due apart reason usage")
SET_SNAPSHOT_IF_HELD = _sql.bulk("set_snapshot_if_held", "stage_run held_attempt worker snapshot")
QUEUE_IF_PENDING = _sql.bulk("queue_if_pending", "stage_run at")
_SET_JOB = _sql.bulk("set_job", "job state ending error error_code at prune_at no_payloads")
_FORGET_PAYLOAD = _sql.bulk("forget_payload", "stage_run")
INSERT_EVENT = _sql.bulk("insert_event", "job_id type data at")
_INSERT_ERROR = _sql.bulk("insert_error", "stage_run attempt worker error at fingerprint tenant")
_INSERT_ARTIFACT = _sql.bulk("insert_artifact", "job_id name stage_run media_type ref at")
_ENDS = (_COMPLETE_IF_RUNNING, _END_IF_RUNNING, _REQUEUE_IF_RUNNING)
_WRITTEN = (
    *_ENDS,
    *(_SET_JOB, INSERT_EVENT, _INSERT_ERROR, _INSERT_ARTIFACT, QUEUE_IF_PENDING, _FORGET_PAYLOAD),
    *(INSERT_GARBAGE, stored_bytes.ADD_STORED_BYTES, usage.ADD_USAGE),
)
"""The statements of ``write`` in their order."""

_NO_FAILURES: Mapping[str, int] = MappingProxyType({})
_NOTHING: Mapping[str, float] = MappingProxyType({})
_HARM = {"worker_lost": "were lost", "fenced": "were cut off from their leases"}  # beyond the limit: quarantined
_JOB_STATES = {state.value: state for state in JobState}
_STAGE_RUN_STATES = {state.value: state for state in StageRunState}
_by_first = itemgetter(0)


class JobTransition:
    """A change of some jobs, locked until the database transaction ends, and of their stage runs.

    ``succeed``, ``fail`` and ``hand_back`` note the ends of running stage runs; ``stop`` asks jobs to stop.
    ``write`` writes the changes and all that follows from them, in a few statements for any number of jobs.

    ``states`` holds the jobs' states by id, ``runs`` the stage runs by id, ``traceparents`` those of the jobs that have
    one, by id. What is noted shows in them at once, what follows from it after ``write``. ``now`` is the time of the
    lock in seconds since 1970 by the database's clock.
    """

    def __init__(
        self,
        tx: Connection,
        ids: Iterable[str | int],
        *,
        lock: str = "lock_jobs",
        read: str = "stage_runs_of_jobs",
    ) -> None:
        """Lock the jobs with these ids, and read their stage runs. Ids that no job has are left out.

        ``lock`` and ``read`` name the SQL statements for this; ``of_stage_runs`` gives others, for stage runs' ids.
        """
        # Each statement sees what is committed when it begins, so the second sees all that the first waited for.
        parameters = {"ids": listed(ids)}
        jobs, runs = execute_pipelined(tx, [(_sql[lock], parameters), (_sql[read], parameters)])
        self._tx = tx
        self.now: float = jobs[0][-1] if jobs else 0.0
        self._stored_states = {job_id: _JOB_STATES[state] for job_id, state, *_ in jobs}
        self._endings = {job_id: _JOB_STATES[ending] for job_id, _, ending, *_ in jobs if ending is not None}
        self.traceparents = {job_id: each for job_id, _, _, _, each, *_ in jobs if each is not None}
        self._tenants: dict[str, str] = {job_id: tenant for job_id, _, _, tenant, *_ in jobs}
        self._pipelines: dict[str, str] = {job_id: pipeline for job_id, *_, pipeline, _, _ in jobs}
        self._keeping = {job_id for job_id, *_, keeps_payloads, _ in jobs if keeps_payloads}
        self._stored_bytes: Counter[str] = Counter()  # the changes of what tenants keep stored
        self._used: usage.Used = {}
        self.states: dict[str, JobState] = dict(self._stored_states)
        self.runs: dict[int, Run] = {}
        self._runs_of_job: dict[str, list[Run]] = {}
        self._quota_tenants: dict[str, str] = {}  # of the jobs that count against a limit
        self._let_in: set[str] = set()  # the queues of jobs that were let in
        self._read_runs(runs)
        self._succeeded_runs: list[Run] = []
        self._requeued_at_once: list[Run] = []
        self._job_errors: dict[str, Mapping[str, Any]] = {}
        self._rows: dict[BulkStatement, Rows] = {statement: [] for statement in _WRITTEN}
        self._changes: list[Change] = []

    @classmethod
    def of_job(cls, tx: Connection, job_id: str) -> Self:
        """Lock one job, and return its transition. Raises NotFound."""
        transition = cls(tx, [job_id] if job_id.isprintable() else [])
        if not transition.states:
            raise NotFound(f"there is no job {job_id!r}", field="job_id")
        return transition

    @classmethod
    def of_stage_runs(cls, tx: Connection, ids: Iterable[int]) -> Self:
        """Lock the jobs of these stage runs, and return their transition. Ids that no stage run has are left out."""
        return cls(tx, ids, lock="lock_jobs_of_stage_runs", read="stage_runs_of_same_jobs")

    def _read_runs(self, rows: Iterable[Sequence[Any]]) -> None:
        self._runs_of_job = {job_id: [] for job_id in self.states}
        for row in sorted(rows, key=_by_first):
            *columns, tenant = row
            run = _run(columns)
            if run.job_id in self.states:  # else its job was written since the jobs were locked
                self.runs[run.id] = run
                self._runs_of_job[run.job_id].append(run)
                if tenant is not None:
                    self._quota_tenants[run.job_id] = tenant

    def runs_of(self, job_id: str) -> Sequence[Run]:
        """Return the stage runs of a locked job, sorted by id."""
        return self._runs_of_job[job_id]

    def only_tenant(self, job_ids: Iterable[str]) -> str | None:
        """Return the tenant of these locked jobs; None if they are of several."""
        tenants = {self._tenants[job_id] for job_id in job_ids}
        return tenants.pop() if len(tenants) == 1 else None

    def find(self, state: StageRunState, stage_run_id: int, attempt: int, worker_id: str) -> Run | None:
        """Return the stage run if it is in this state, at this attempt and owned by this worker; else None."""
        run = self.runs.get(stage_run_id)
        if run is None or (run.state, run.attempt, run.owner) != (state, attempt, worker_id):
            return None
        return run

    def is_active(self, run: Run) -> bool:
        """Return whether the stage run's job goes on: it is queued or in progress, and no error is noted for it."""
        return self.states[run.job_id] in ACTIVE and run.job_id not in self._job_errors

    # Ends of running stage runs.

    def succeed(self, run: Run, completion: Completion) -> None:
        """Note that a running stage run of an active job has succeeded."""
        run.state = StageRunState.SUCCEEDED
        self._note_run(run)
        self._use(run, completion.device_s, completion.made)
        self._drop_snapshot(run)
        ref = completion.payload
        run.payload_bytes = completion.payload_bytes
        run.payload_key = None if ref is None else ref.key
        self._succeeded_runs.append(run)
        self._rows[_COMPLETE_IF_RUNNING].append(
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
                _json_or_none(run.usage),
                _steps_json(completion.steps),
            )
        )
        stored = len(completion.result_json) + completion.payload_bytes
        stored += sum(artifact.ref.size for artifact in completion.artifacts)
        self._stored_bytes[self._tenants[run.job_id]] += stored
        self._rows[_INSERT_ARTIFACT] += [
            (run.job_id, artifact.name, run.id, artifact.media_type, artifact.ref.model_dump_json(), self.now)
            for artifact in completion.artifacts
        ]

    def fail(self, run: Run, error: OmniJobsError, device_s: float = 0.0, steps: StepSeconds | None = None) -> None:
        """Note the error of a running stage run: it is queued again, or fails its job, or is cancelled with it."""
        self._use(run, device_s)
        retry_class = error.retry_class or "other"
        run.failures = {**run.failures, retry_class: run.failures.get(retry_class, 0) + 1}
        details = error.to_dict()
        details.setdefault("stage", run.stage)
        kind, tenant = fingerprint(error.code, run.stage, error.message), self._tenants[run.job_id]
        spent = {} if steps is None else steps.to_json()
        told = encode_json({**details, "started_at": run.started_at, **spent})
        self._rows[_INSERT_ERROR].append((run.id, run.attempt, run.owner or "", told, self.now, kind, tenant))
        delay_s = retry_delay(error, run.failures, run.retries)
        if not self.is_active(run):
            self._end(run, StageRunState.CANCELLED, steps, details)
        elif delay_s is not None:
            self._requeue(run, delay_s, details)
        else:
            if retry_class in _HARM:
                details = Quarantined(
                    f"{run.failures[retry_class]} workers {_HARM[retry_class]} while they ran this; "
                    f"the last: {error.message}",
                    stage=run.stage,
                ).to_dict()
            self._job_errors[run.job_id] = details
            self._end(run, StageRunState.FAILED, steps, details)

    def hand_back(self, run: Run, device_s: float = 0.0, steps: StepSeconds | None = None) -> None:
        """Note that a running stage run ended without a result or an error, which counts as no failure.

        It is queued again, or cancelled if its job is not active any more.
        """
        self._use(run, device_s)
        if self.is_active(run):
            self._requeue(run, 0.0)
        else:
            self._end(run, StageRunState.CANCELLED, steps)

    def _use(self, run: Run, device_s: float, made: Mapping[str, float] = _NOTHING) -> None:
        """Note what an attempt that ends has used."""
        began = self.now if run.started_at is None else run.started_at
        used = usage.of_attempt(self.now - began, device_s, made)
        usage.note(self._used, (self._tenants[run.job_id], self._pipelines[run.job_id], run.stage), used)
        if run.usage is None:
            run.usage = used
        else:
            usage.add(used, run.usage)

    def _requeue(self, run: Run, delay_s: float, error: Mapping[str, Any] | None = None) -> None:
        run.state = StageRunState.QUEUED
        self._note_run(run, error)
        run.owner = None
        due = self.now + delay_s
        reason = "retry_backoff" if delay_s else None
        apart = "" if is_last_chance(run.failures, run.retries) else None
        self._rows[_REQUEUE_IF_RUNNING].append(
            (run.id, run.attempt, _json_or_none(run.failures), due, apart, reason, _json_or_none(run.usage))
        )
        if not delay_s:
            self._requeued_at_once.append(run)

    def _end(
        self, run: Run, state: StageRunState, steps: StepSeconds | None, error: Mapping[str, Any] | None = None
    ) -> None:
        run.state = state
        self._note_run(run, error)
        self._drop_snapshot(run)
        self._rows[_END_IF_RUNNING].append(
            (
                run.id,
                run.attempt,
                state.value,
                _json_or_none(run.failures),
                self.now,
                _json_or_none(run.usage),
                _steps_json(steps),
            )
        )

    def _drop_snapshot(self, run: Run) -> None:
        """Note the snapshots of a stage run that ends as garbage; the statement of its end clears them in the row."""
        if run.snapshot is not None:
            self._rows[INSERT_GARBAGE] += [(run.job_id, key) for key in run.snapshot.keys]
            run.snapshot = None

    def _note_run(self, run: Run, error: Mapping[str, Any] | None = None) -> None:
        self._changes.append(Change(run.job_id, run.state, run.id, run.stage, run.attempt, run.owner, error))

    def stop(self, errors: Mapping[str, Expired | None]) -> None:
        """Cancel the waiting stage runs of these active jobs, and ask their running ones to end.

        ``errors`` holds each job's error by job id. A job with an error ends as expired, one with None as cancelled.
        """
        waiting = [run for job_id in errors for run in self._runs_of_job[job_id] if not run.state.is_final]
        self._cancel_waiting(waiting)
        # Read again: a claim, which waits for no lock of a started job, may have come before the cancellation.
        self._read_runs(_sql["stage_runs_of_jobs"].rows(self._tx, {"ids": listed(self.states)}))
        for job_id, error in errors.items():
            self.states[job_id] = JobState.CANCELLING
            self._endings[job_id] = JobState.CANCELLED if error is None else JobState.EXPIRED
            if error is not None:
                self._job_errors[job_id] = error.to_dict()

    def _cancel_waiting(self, runs: Iterable[Run]) -> None:
        """Cancel those of these stage runs that nobody has claimed."""
        by_id = {run.id: run for run in runs}
        parameters = {"ids": listed(by_id), "at": str(self.now)}
        cancelled = [by_id[id_] for (id_,) in _sql["cancel_if_waiting"].rows(self._tx, parameters)]
        snapshots = [(run.job_id, run.snapshot) for run in cancelled if run.snapshot is not None]
        INSERT_GARBAGE.run(self._tx, [(job_id, key) for job_id, snapshot in snapshots for key in snapshot.keys])
        state = StageRunState.CANCELLED
        self._changes += [Change(run.job_id, state, run.id, run.stage, run.attempt) for run in cancelled]

    # What follows.

    def write(self, prune_after_s: float = 0.0) -> None:
        """Write the changes, queue the stage runs whose inputs are all there, and end the jobs that are done.

        The pruner checks a job ``prune_after_s`` after its end if it left no payloads, else at once.
        Raises RuntimeError when another transaction has changed a stage run in spite of the lock.
        """
        to_queue: list[Run] = []
        to_cancel: list[Run] = []
        for job_id in self._stored_states:
            ending = self._endings.get(job_id, JobState.CANCELLED)
            step = next_step(self.states[job_id], self._runs_of_job[job_id], ending)
            to_queue += step.queue
            to_cancel += step.cancel
            self.states[job_id] = step.job_state
            self._note_job(job_id, ending, prune_after_s)
        self._write_rows(to_queue)
        if to_cancel:  # after the rest, because what was queued again a moment ago may be among them
            self._cancel_waiting(to_cancel)
        self._end_quota()
        for run in to_queue:
            run.state = StageRunState.QUEUED
            self._note_run(run)
        for run in to_cancel:
            run.state = StageRunState.CANCELLED
        changes = self._changes + self._job_changes()
        if self.traceparents:
            changes = [each._replace(traceparent=self.traceparents.get(each.job_id)) for each in changes]
        note(changes)

    def _job_changes(self) -> list[Change]:
        """Return the transitions of the jobs themselves, which come after those of their stage runs."""
        return [
            Change(job_id, state, error=self._job_errors.get(job_id))
            for job_id, state in self.states.items()
            if state is not self._stored_states[job_id]
        ]

    def _note_job(self, job_id: str, ending: JobState, prune_after_s: float) -> None:
        """Note the new state of a job and its event, unless the job has this state already."""
        state = self.states[job_id]
        if state == self._stored_states[job_id]:
            return
        error = self._job_errors.get(job_id)
        error_json, code = (None, None) if error is None else (encode_json(error), error["code"])
        finished_at = prune_at = self.now if state.is_final else None
        attempts = (run.attempt for run in self._runs_of_job[job_id])
        no_payloads = job_id not in self._keeping and leaves_no_payloads(state, attempts)
        if no_payloads:
            prune_at = self.now + prune_after_s
        new_ending = ending.value if state == JobState.CANCELLING else None
        self._rows[_SET_JOB].append(
            (job_id, state.value, new_ending, error_json, code, finished_at, prune_at, int(no_payloads))
        )
        data = "{}" if error is None else encode_json({"error": error})
        self._rows[INSERT_EVENT].append((job_id, f"job.{state.value}", data, self.now))

    def _write_rows(self, to_queue: Sequence[Run]) -> None:
        unneeded = self._unneeded_payloads()
        rows = self._rows
        for statement in _ENDS:
            rows[statement].sort(key=_by_first)
        rows[QUEUE_IF_PENDING] += [(run.id, self.now) for run in to_queue]
        rows[_FORGET_PAYLOAD] += [(run.id,) for run in unneeded]
        rows[INSERT_GARBAGE] += [(run.job_id, run.payload_key) for run in unneeded if run.payload_key is not None]
        for run in unneeded:
            self._stored_bytes[self._tenants[run.job_id]] -= run.payload_bytes or 0
        if not self._quota_tenants:  # jobs that end let in others, and tenants' rows are locked before stored bytes
            rows[stored_bytes.ADD_STORED_BYTES] += stored_bytes.rows_to_add(self._stored_bytes)
            rows[usage.ADD_USAGE] += usage.rows_to_add(self._used, self.now)
        run_all(self._tx, list(rows.items()), exact=len(_ENDS))

    def _end_quota(self) -> None:
        """Let in others in place of the jobs that have ended and count against their tenants' limits."""
        ended = {
            job_id: tenant
            for job_id, tenant in self._quota_tenants.items()
            if self.states[job_id].is_final and not self._stored_states[job_id].is_final
        }
        if ended:
            self._let_in = quota.leave(self._tx, ended)
        if self._quota_tenants:
            stored_bytes.add(self._tx, self._stored_bytes)
            usage.ADD_USAGE.run(self._tx, usage.rows_to_add(self._used, self.now))

    def _unneeded_payloads(self) -> list[Run]:
        """Return the stage runs with payloads that no stage needs any more.

        Those are all payloads of jobs that completed, and stored ones whose successors have all succeeded; but none of
        jobs that keep their payloads.
        """
        unneeded: list[Run] = []
        just_made = {run.id for run in self._succeeded_runs}  # nobody can have taken their payloads yet
        for job_id in {run.job_id for run in self._succeeded_runs if run.inputs} - self._keeping:
            runs = self._runs_of_job[job_id]
            if self.states[job_id] == JobState.COMPLETED:
                unneeded += [run for run in runs if run.has_payload]
            else:
                unneeded += unneeded_payloads(runs)
        return [run for run in unneeded if run.id not in just_made]

    def queues(self, runs: Iterable[Run]) -> set[str]:
        """Return the queues to ring after ``write``: of queued ``runs``, of what was queued again, of jobs let in."""
        due = {run.queue for run in (*runs, *self._requeued_at_once) if run.state == StageRunState.QUEUED}
        return due | self._let_in


def _run(row: Sequence[Any]) -> Run:
    """Make a Run of the columns of ``stage_runs_of_jobs``, without the last one, the tenant of its job's quota."""
    id_, job_id, stage, queue, inputs, state, attempt, failures, retries, owner, payload_bytes, ref, *more = row
    gone, reason, snapshot, started_at, used = more
    return Run(
        id_,
        job_id,
        stage,
        queue,
        stage_names(inputs),
        _STAGE_RUN_STATES[state],
        attempt,
        _NO_FAILURES if failures is None else decode_json(failures),
        retry_limits(retries),
        owner,
        payload_bytes,
        payload_key=None if ref is None else decode_json(ref)["key"],
        payload_gone=gone,
        reason=reason,
        snapshot=None if snapshot is None else StoredSnapshot.of(decode_json(snapshot)),
        started_at=started_at,
        usage=None if used is None else decode_json(used),
    )


def _steps_json(steps: StepSeconds | None) -> str | None:
    return None if steps is None else encode_json(steps.to_json())


def _json_or_none(counts: Mapping[str, float] | None) -> str | None:
    return encode_json(counts) if counts else None
