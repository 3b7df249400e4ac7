"""How a running stage run ends: complete, fail, release. And cancel, which asks it to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, bindparam, select, tuple_

from omni_jobs.database.batch import listed, one_of
from omni_jobs.database.statement import Call
from omni_jobs.database.tables import ArtifactRow, AttemptErrorRow
from omni_jobs.errors import NotFound, StageError
from omni_jobs.jobs.graph import Run
from omni_jobs.jobs.transition import LockedJobs
from omni_jobs.jobs.values import Completion, Failure, Outcome
from omni_jobs.states import JobState, StageRunState

__all__ = ["Completed", "cancel", "complete", "fail", "release"]

_ARTIFACTS_OF_JOBS = select(ArtifactRow.job_id, ArtifactRow.name).where(
    one_of(ArtifactRow.job_id, bindparam("ids", type_=Text))
)


@dataclass(frozen=True, slots=True)
class Completed:
    """What became of completions; read when the transaction has ended."""

    _locked: LockedJobs
    _completions: Sequence[Completion]
    _won: Sequence[bool]
    then: Sequence[Sequence[tuple[Any, ...]]]  # the rows of what else was run

    def read(self) -> list[Outcome]:
        """In the order of the completions."""
        return [
            _outcome(self._locked, completion.stage_run_id, won, _consumers(self._locked, completion.stage_run_id))
            for completion, won in zip(self._completions, self._won, strict=True)
        ]


def complete(
    tx: Connection,
    completions: Sequence[Completion],
    *,
    announce_after_s: float,
    prune_after_s: float,
    then: Sequence[Call] = (),
    commit: bool = False,
) -> Completed:
    """Record the ends of attempts; queue what they were waited for; finish jobs.

    ``then``: what else to run, for its rows; ``commit``: nothing follows in this transaction.
    """
    locked = LockedJobs.of_stage_runs(
        tx, [completion.stage_run_id for completion in completions], announce_after_s=announce_after_s
    )
    names = _artifact_names(tx, locked, completions)
    won = []
    for completion in completions:
        run = locked.held(completion.stage_run_id, completion.attempt, completion.worker_id)
        if run is None:
            won.append(_succeeded_before(locked, completion))
        elif not locked.is_active(run):
            locked.hand_back(run)
            won.append(False)
        else:
            new = [artifact.name for artifact in completion.artifacts]
            taken = sorted({name for name in new if (run.job_id, name) in names or new.count(name) > 1})
            if taken:
                locked.fail(run, StageError(f"artifact {taken[0]!r} is there already", stage=run.stage, key=taken[0]))
            else:
                names.update((run.job_id, name) for name in new)
                locked.succeed(run, completion)
            won.append(not taken)
    found = locked.settle(prune_after_s=prune_after_s, then=then, commit=commit)
    return Completed(locked, completions, won, found)


def fail(tx: Connection, failures: Sequence[Failure], *, announce_after_s: float) -> list[Outcome]:
    """Record the errors of attempts: each is tried again, or fails its job."""
    locked = LockedJobs.of_stage_runs(
        tx, [failure.stage_run_id for failure in failures], announce_after_s=announce_after_s
    )
    runs = [locked.held(failure.stage_run_id, failure.attempt, failure.worker_id) for failure in failures]
    before = _errors_before(tx, [failure for failure, run in zip(failures, runs, strict=True) if run is None])
    for failure, run in zip(failures, runs, strict=True):
        if run is not None:
            locked.fail(run, failure.error)
    locked.settle()
    return [
        _outcome(
            locked,
            failure.stage_run_id,
            run is not None or (failure.stage_run_id, failure.attempt, failure.worker_id) in before,
            [run] if run is not None else [],
        )
        for failure, run in zip(failures, runs, strict=True)
    ]


def release(
    tx: Connection, held: Sequence[tuple[int, int]], worker_id: str, *, announce_after_s: float
) -> list[Outcome]:
    """Hand back attempts without an error: queued again, or cancelled if their job is to stop."""
    locked = LockedJobs.of_stage_runs(tx, [stage_run_id for stage_run_id, _ in held], announce_after_s=announce_after_s)
    runs = [locked.held(stage_run_id, attempt, worker_id) for stage_run_id, attempt in held]
    for run in runs:
        if run is not None:
            locked.hand_back(run)
    locked.settle()
    return [
        _outcome(locked, stage_run_id, run is not None, [run] if run is not None else [])
        for (stage_run_id, _), run in zip(held, runs, strict=True)
    ]


def cancel(tx: Connection, job_id: str, *, announce_after_s: float) -> JobState:
    """Stop a job unless it has ended; its state then. Raises NotFound."""
    locked = LockedJobs(tx, [job_id] if job_id.isprintable() else [], announce_after_s=announce_after_s)
    if job_id not in locked.states:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    if locked.states[job_id] in (JobState.QUEUED, JobState.IN_PROGRESS):
        locked.stop({job_id: None})
        locked.settle()
    return locked.states[job_id]


def _outcome(locked: LockedJobs, stage_run_id: int, won: bool, runs: Sequence[Run]) -> Outcome:
    run = locked.runs.get(stage_run_id)
    if run is None:
        return Outcome(won=False)
    return Outcome(won=won, hints=locked.hints(runs), job_state=locked.states[run.job_id])


def _consumers(locked: LockedJobs, stage_run_id: int) -> list[Run]:
    """The stage runs that wait for this one, once it has succeeded."""
    run = locked.runs.get(stage_run_id)
    if run is None or run.state != StageRunState.SUCCEEDED:
        return []
    return [other for other in locked.runs_of(run.job_id) if run.stage in other.inputs]


def _succeeded_before(locked: LockedJobs, completion: Completion) -> bool:
    """Whether this very completion is recorded: the answer to an earlier commit of it was lost."""
    run = locked.runs.get(completion.stage_run_id)
    return (
        run is not None
        and run.state == StageRunState.SUCCEEDED
        and run.attempt == completion.attempt
        and run.owner == completion.worker_id
    )


def _errors_before(tx: Connection, failures: Sequence[Failure]) -> set[tuple[int, int, str]]:
    """Which of these failures are recorded."""
    if not failures:
        return set()
    pairs = [(failure.stage_run_id, failure.attempt) for failure in failures]
    rows = tx.execute(
        select(AttemptErrorRow.stage_run_id, AttemptErrorRow.attempt, AttemptErrorRow.worker).where(
            AttemptErrorRow.stage_run_id.in_([stage_run_id for stage_run_id, _ in pairs]),
            tuple_(AttemptErrorRow.stage_run_id, AttemptErrorRow.attempt).in_(pairs),
        )
    )
    return {(row.stage_run_id, row.attempt, row.worker) for row in rows}


def _artifact_names(tx: Connection, locked: LockedJobs, completions: Sequence[Completion]) -> set[tuple[str, str]]:
    """(job, name) of the artifacts there are, for the jobs that are to get new ones."""
    runs = [locked.runs.get(completion.stage_run_id) for completion in completions if completion.artifacts]
    job_ids = sorted({run.job_id for run in runs if run is not None})
    if not job_ids:
        return set()
    rows = tx.execute(_ARTIFACTS_OF_JOBS, {"ids": listed(job_ids)})
    return {(row.job_id, row.name) for row in rows}
