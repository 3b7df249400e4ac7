"""The ends of running stage runs: complete, fail and release; and cancel, which asks for an end."""

from collections.abc import Sequence

from sqlalchemy import Connection, Text, bindparam, select

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import ArtifactRow, AttemptErrorRow
from omni_jobs.errors import StageError
from omni_jobs.jobs.life.successors import ACTIVE, Run
from omni_jobs.jobs.life.transition import JobTransition
from omni_jobs.jobs.values import Completion, Failure, Outcome
from omni_jobs.states import JobState, StageRunState

_ARTIFACTS_OF_JOBS = select(ArtifactRow.job_id, ArtifactRow.name).where(
    one_of(ArtifactRow.job_id, bindparam("ids", type_=Text))
)


def complete(
    tx: Connection,
    completions: Sequence[Completion],
    prune_after_s: float,
) -> list[Outcome]:
    """Record workers' completions, queue the successors of their stage runs, and end jobs that are done.

    Return the outcomes in the order of the completions; one that is refused is not won, and raises nothing.
    """
    ids = [completion.stage_run_id for completion in completions]
    transition = JobTransition.of_stage_runs(tx, ids)
    names = _artifact_names(tx, transition, completions)
    won = [_note(transition, completion, names) for completion in completions]
    transition.write(prune_after_s)
    return [
        _outcome(transition, completion.stage_run_id, is_won, _successors(transition, completion.stage_run_id))
        for completion, is_won in zip(completions, won, strict=True)
    ]


def _note(transition: JobTransition, completion: Completion, names: set[tuple[str, str]]) -> bool:
    """Note one completion, and return whether it is recorded.

    ``names`` are the artifacts there are, as (job id, name); those of the completion are added.
    """
    report = (completion.stage_run_id, completion.attempt, completion.worker_id)
    run = transition.find(StageRunState.RUNNING, *report)
    if run is None:  # the answer to an earlier commit of this completion may have been lost
        return transition.find(StageRunState.SUCCEEDED, *report) is not None
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


def fail(tx: Connection, failures: Sequence[Failure]) -> list[Outcome]:
    """Record the errors of attempts: each stage run is queued again, fails its job, or is cancelled with it.

    Return the outcomes in order. A report of an attempt that is over is won only if its error is recorded already.
    """
    reports = [(failure.stage_run_id, failure.attempt, failure.worker_id) for failure in failures]
    transition = JobTransition.of_stage_runs(tx, [stage_run_id for stage_run_id, _, _ in reports])
    runs = [transition.find(StageRunState.RUNNING, *report) for report in reports]
    recorded = _recorded_errors(tx, [report for report, run in zip(reports, runs, strict=True) if run is None])
    for failure, run in zip(failures, runs, strict=True):
        if run is not None:
            transition.fail(run, failure.error)
    transition.write()
    return [
        _outcome(transition, report[0], run is not None or report in recorded, [] if run is None else [run])
        for report, run in zip(reports, runs, strict=True)
    ]


def release(tx: Connection, held: Sequence[tuple[int, int]], worker_id: str) -> list[Outcome]:
    """Hand back a worker's attempts ``(stage_run_id, attempt)`` without an error, and return the outcomes in order.

    Their stage runs are queued again, or cancelled if their job is to end. An attempt that is over is not won.
    """
    ids = [stage_run_id for stage_run_id, _ in held]
    transition = JobTransition.of_stage_runs(tx, ids)
    runs = [transition.find(StageRunState.RUNNING, *attempt, worker_id) for attempt in held]
    for run in runs:
        if run is not None:
            transition.hand_back(run)
    transition.write()
    return [
        _outcome(transition, stage_run_id, run is not None, [] if run is None else [run])
        for stage_run_id, run in zip(ids, runs, strict=True)
    ]


def cancel(tx: Connection, job_id: str) -> JobState:
    """Cancel a job, and return its state afterwards. Raises NotFound.

    Its waiting stage runs are cancelled at once. While one runs, the job is ``cancelling``, until its worker has
    stopped it. A job that has ended keeps its state. If another job is let in instead, nobody rings for it: workers
    with free slots find it when they poll.
    """
    transition = JobTransition.of_job(tx, job_id)
    if transition.states[job_id] in ACTIVE:
        transition.stop({job_id: None})
        transition.write()
    return transition.states[job_id]


def _outcome(transition: JobTransition, stage_run_id: int, won: bool, runs: Sequence[Run]) -> Outcome:
    """Make the outcome of a report about a stage run; ``runs`` may have been queued by it."""
    run = transition.runs.get(stage_run_id)
    if run is None:
        return Outcome(won=False)
    return Outcome(won=won, queues=transition.queues(runs), job_state=transition.states[run.job_id])


def _successors(transition: JobTransition, stage_run_id: int) -> list[Run]:
    """Return the stage runs that take this one's payload, once it has succeeded; else none."""
    run = transition.runs.get(stage_run_id)
    if run is None or run.state != StageRunState.SUCCEEDED:
        return []
    # Not only what ``write`` has just queued: a repeated completion queues nothing, and rings once more.
    return [other for other in transition.runs_of(run.job_id) if run.stage in other.inputs]


def _recorded_errors(tx: Connection, reports: Sequence[tuple[int, int, str]]) -> set[tuple[int, int, str]]:
    """Return (stage run id, attempt, worker) of all errors that are recorded for the stage runs of these reports."""
    if not reports:
        return set()
    error = AttemptErrorRow
    columns = (error.stage_run_id, error.attempt, error.worker)
    of_runs = error.stage_run_id.in_([stage_run_id for stage_run_id, _, _ in reports])
    return set(tx.execute(select(*columns).where(of_runs)).tuples())


def _artifact_names(
    tx: Connection, transition: JobTransition, completions: Sequence[Completion]
) -> set[tuple[str, str]]:
    """Return (job id, name) of the artifacts there are, of the jobs that are to get new ones."""
    runs = [transition.runs.get(completion.stage_run_id) for completion in completions if completion.artifacts]
    job_ids = sorted({run.job_id for run in runs if run is not None})
    if not job_ids:
        return set()
    return set(tx.execute(_ARTIFACTS_OF_JOBS, {"ids": listed(job_ids)}).tuples())
