"""The ends of running stage runs: complete, fail and release; and cancel, which asks for an end."""

from collections.abc import Sequence

from sqlalchemy import Connection, Text, bindparam, select

from omni_jobs.database.bulk_statement import listed, one_of
from omni_jobs.database.tables import ArtifactRow, AttemptErrorRow
from omni_jobs.errors import NotFound, StageError
from omni_jobs.jobs.next_step import Run
from omni_jobs.jobs.transition import JobTransition
from omni_jobs.jobs.values import Completion, Failure, Outcome
from omni_jobs.states import JobState, StageRunState

_ARTIFACTS_OF_JOBS = select(ArtifactRow.job_id, ArtifactRow.name).where(
    one_of(ArtifactRow.job_id, bindparam("ids", type_=Text))
)


def complete(
    tx: Connection,
    completions: Sequence[Completion],
    *,
    announce_after_s: float,
    prune_after_s: float,
    ends_transaction: bool = False,
) -> list[Outcome]:
    """Record completions, queue the stages that waited for them, and finish jobs.

    Return the outcomes in the order of the completions. With ``ends_transaction`` the database transaction may
    end here, because the caller runs nothing more in it.
    """
    transition = JobTransition.of_stage_runs(
        tx, [completion.stage_run_id for completion in completions], announce_after_s=announce_after_s
    )
    names = _artifact_names(tx, transition, completions)
    won = [_note(transition, completion, names) for completion in completions]
    transition.commit(prune_after_s=prune_after_s, ends_transaction=ends_transaction)
    return [
        _outcome(transition, completion.stage_run_id, is_won, _consumers(transition, completion.stage_run_id))
        for completion, is_won in zip(completions, won, strict=True)
    ]


def _note(transition: JobTransition, completion: Completion, names: set[tuple[str, str]]) -> bool:
    """Note one completion, and return whether it is recorded.

    ``names`` are the artifacts there are, as (job id, name); those of the completion are added.
    """
    run = transition.held(completion.stage_run_id, completion.attempt, completion.worker_id)
    if run is None:
        return _succeeded_before(transition, completion)
    if not transition.is_active(run):
        transition.hand_back(run)
        return False
    new = [artifact.name for artifact in completion.artifacts]
    taken = sorted({name for name in new if (run.job_id, name) in names or new.count(name) > 1})
    if taken:
        error = StageError(f"artifact {taken[0]!r} is there already", stage=run.stage, key=taken[0])
        transition.fail(run, error)
        return False
    names.update((run.job_id, name) for name in new)
    transition.succeed(run, completion)
    return True


def fail(tx: Connection, failures: Sequence[Failure], *, announce_after_s: float) -> list[Outcome]:
    """Record the errors of attempts: each stage run is queued again, or fails its job.

    Return the outcomes in the order of the failures.
    """
    transition = JobTransition.of_stage_runs(
        tx, [failure.stage_run_id for failure in failures], announce_after_s=announce_after_s
    )
    runs = [transition.held(failure.stage_run_id, failure.attempt, failure.worker_id) for failure in failures]
    before = _errors_before(tx, [failure for failure, run in zip(failures, runs, strict=True) if run is None])
    for failure, run in zip(failures, runs, strict=True):
        if run is not None:
            transition.fail(run, failure.error)
    transition.commit()
    return [
        _outcome(
            transition,
            failure.stage_run_id,
            run is not None or (failure.stage_run_id, failure.attempt, failure.worker_id) in before,
            [run] if run is not None else [],
        )
        for failure, run in zip(failures, runs, strict=True)
    ]


def release(
    tx: Connection, held: Sequence[tuple[int, int]], worker_id: str, *, announce_after_s: float
) -> list[Outcome]:
    """Hand back attempts ``(stage_run_id, attempt)`` without an error: queued again, or cancelled with their job.

    Return the outcomes in the order of ``held``.
    """
    transition = JobTransition.of_stage_runs(
        tx, [stage_run_id for stage_run_id, _ in held], announce_after_s=announce_after_s
    )
    runs = [transition.held(stage_run_id, attempt, worker_id) for stage_run_id, attempt in held]
    for run in runs:
        if run is not None:
            transition.hand_back(run)
    transition.commit()
    return [
        _outcome(transition, stage_run_id, run is not None, [run] if run is not None else [])
        for (stage_run_id, _), run in zip(held, runs, strict=True)
    ]


def cancel(tx: Connection, job_id: str, *, announce_after_s: float) -> JobState:
    """Stop a job unless it has ended, and return its state then. Raises NotFound."""
    transition = JobTransition(tx, [job_id] if job_id.isprintable() else [], announce_after_s=announce_after_s)
    if job_id not in transition.states:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    if transition.states[job_id] in (JobState.QUEUED, JobState.IN_PROGRESS):
        transition.stop({job_id: None})
        transition.commit()
    return transition.states[job_id]


def _outcome(transition: JobTransition, stage_run_id: int, won: bool, runs: Sequence[Run]) -> Outcome:
    """Make the outcome of a report about a stage run; ``runs`` may have been queued by it."""
    run = transition.runs.get(stage_run_id)
    if run is None:
        return Outcome(won=False)
    return Outcome(won=won, hints=transition.hints(runs), job_state=transition.states[run.job_id])


def _consumers(transition: JobTransition, stage_run_id: int) -> list[Run]:
    """Return the stage runs that take this one's payload, once it has succeeded; else none."""
    run = transition.runs.get(stage_run_id)
    if run is None or run.state != StageRunState.SUCCEEDED:
        return []
    return [other for other in transition.runs_of(run.job_id) if run.stage in other.inputs]


def _succeeded_before(transition: JobTransition, completion: Completion) -> bool:
    """Return whether this very completion is recorded, because the answer to an earlier commit of it was lost."""
    run = transition.runs.get(completion.stage_run_id)
    return (
        run is not None
        and run.state == StageRunState.SUCCEEDED
        and run.attempt == completion.attempt
        and run.owner == completion.worker_id
    )


def _errors_before(tx: Connection, failures: Sequence[Failure]) -> set[tuple[int, int, str]]:
    """Return (stage run id, attempt, worker) of all errors that are recorded for these failures' stage runs."""
    if not failures:
        return set()
    rows = tx.execute(
        select(AttemptErrorRow.stage_run_id, AttemptErrorRow.attempt, AttemptErrorRow.worker).where(
            AttemptErrorRow.stage_run_id.in_([failure.stage_run_id for failure in failures])
        )
    )
    return {(row.stage_run_id, row.attempt, row.worker) for row in rows}


def _artifact_names(
    tx: Connection, transition: JobTransition, completions: Sequence[Completion]
) -> set[tuple[str, str]]:
    """Return (job id, name) of the artifacts there are, of the jobs that are to get new ones."""
    runs = [transition.runs.get(completion.stage_run_id) for completion in completions if completion.artifacts]
    job_ids = sorted({run.job_id for run in runs if run is not None})
    if not job_ids:
        return set()
    rows = tx.execute(_ARTIFACTS_OF_JOBS, {"ids": listed(job_ids)})
    return {(row.job_id, row.name) for row in rows}
