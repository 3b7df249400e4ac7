"""Report: the ends of running stage runs, completed, failed or handed back; and cancel, which asks for an end."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, Text, bindparam, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import ArtifactRow, AttemptErrorRow, JobRow
from omni_jobs.errors import StageError
from omni_jobs.jobs.life.successors import ACTIVE, Run
from omni_jobs.jobs.life.transition import JobTransition
from omni_jobs.jobs.values import Completion, Failure, Outcome, Release, Report
from omni_jobs.states import JobState, StageRunState

_ARTIFACTS_OF_JOBS = select(ArtifactRow.job_id, ArtifactRow.name).where(
    one_of(ArtifactRow.job_id, bindparam("ids", type_=Text))
)
_Attempt = tuple[int, int, str]  # stage run id, attempt, worker


def report(tx: Connection, reports: Sequence[Report], prune_after_s: float = 0.0) -> Sequence[Outcome]:
    """Record how attempts have ended, and return the outcomes in the order of the reports.

    Completion  The stage run has succeeded. Successors whose inputs have all succeeded are queued, and a job whose
                stage runs have all succeeded is completed. If the job is to stop, nothing of it is kept. If the job
                has an artifact of the same name, the attempt fails. In both cases it is not ``won``.
    Failure     The stage run is queued again while its stage has retries left of the error's retry class: due at once
                if its worker was lost or fenced, else after a pause. Otherwise its job fails.
    Release     The stage run is queued again, and no failure is counted.

    A stage run that is not to go on, because its job is to stop, is cancelled instead of queued. A report of an attempt
    that is over changes nothing. It may be there once more because the answer to it was lost: so a completion is
    ``won`` if the attempt has succeeded, and a failure if an error of the attempt is recorded, but a release never.

    The pruner checks jobs that have ended and left no payloads after ``prune_after_s``.
    """
    if not reports:
        return ()
    transition = JobTransition.of_stage_runs(tx, [report.stage_run_id for report in reports])
    names = _artifact_names(tx, transition, reports)
    recorded = _recorded_errors(tx, transition, reports)
    won = [_note(transition, report, names, recorded) for report in reports]
    transition.write(prune_after_s)
    queues = transition.queues(_successors(transition, reports))
    runs = [transition.runs.get(report.stage_run_id) for report in reports]
    return [Outcome(is_won, queues, None if run is None else run.state) for is_won, run in zip(won, runs, strict=True)]


def _note(transition: JobTransition, report: Report, names: set[tuple[str, str]], recorded: set[_Attempt]) -> bool:
    """Note one report, and return whether it is recorded.

    ``names`` are the artifacts there are, as (job id, name); those of a completion are added. ``recorded`` are the
    attempts whose errors are.
    """
    run = transition.find(StageRunState.RUNNING, *_attempt(report))
    if run is None:
        return _is_recorded(transition, report, recorded)
    match report:
        case Completion() if transition.is_active(run):
            return _note_completion(transition, run, report, names)
        case Completion():
            transition.hand_back(run, report.device_s, report.steps)
            return False
        case Failure():
            transition.fail(run, report.error, report.device_s, report.steps)
            return True
        case Release():
            transition.hand_back(run, report.device_s, report.steps)
            return True


def _is_recorded(transition: JobTransition, report: Report, recorded: set[_Attempt]) -> bool:
    """Return whether a report of an attempt that is over was recorded before: its answer may have been lost."""
    match report:
        case Completion():
            return transition.find(StageRunState.SUCCEEDED, *_attempt(report)) is not None
        case Failure():
            return _attempt(report) in recorded
        case Release():
            return False  # nothing tells


def _note_completion(transition: JobTransition, run: Run, completion: Completion, names: set[tuple[str, str]]) -> bool:
    """Note that a stage run of an active job has succeeded, or failed by an artifact whose name is taken."""
    new = [artifact.name for artifact in completion.artifacts]
    taken = sorted({name for name in new if (run.job_id, name) in names or new.count(name) > 1})
    if taken:
        error = StageError(f"artifact {taken[0]!r} is there already", stage=run.stage, key=taken[0])
        transition.fail(run, error, completion.device_s, completion.steps)
        return False
    names.update((run.job_id, name) for name in new)
    transition.succeed(run, completion)
    return True


def _attempt(report: Report) -> _Attempt:
    return report.stage_run_id, report.attempt, report.worker_id


def _successors(transition: JobTransition, reports: Sequence[Report]) -> list[Run]:
    """Return the stage runs that take what these completions have made.

    Not only what ``write`` has just queued: a repeated completion queues nothing, and rings once more.
    """
    completed = [transition.runs.get(report.stage_run_id) for report in reports if isinstance(report, Completion)]
    return [
        other
        for run in completed
        if run is not None and run.state == StageRunState.SUCCEEDED
        for other in transition.runs_of(run.job_id)
        if run.stage in other.inputs
    ]


def _recorded_errors(tx: Connection, transition: JobTransition, reports: Sequence[Report]) -> set[_Attempt]:
    """Return the attempts whose errors are recorded, of the stage runs that failed and do not run the attempt."""
    failed = [report for report in reports if isinstance(report, Failure)]
    over = [each for each in failed if transition.find(StageRunState.RUNNING, *_attempt(each)) is None]
    if not over:
        return set()
    error = AttemptErrorRow
    of_runs = error.stage_run_id.in_([report.stage_run_id for report in over])
    return set(tx.execute(select(error.stage_run_id, error.attempt, error.worker).where(of_runs)))


def _artifact_names(tx: Connection, transition: JobTransition, reports: Sequence[Report]) -> set[tuple[str, str]]:
    """Return (job id, name) of the artifacts there are, of the jobs that are to get new ones."""
    bringing = [report.stage_run_id for report in reports if isinstance(report, Completion) and report.artifacts]
    job_ids = sorted({run.job_id for each in bringing if (run := transition.runs.get(each)) is not None})
    if not job_ids:
        return set()
    return set(tx.execute(_ARTIFACTS_OF_JOBS, {"ids": listed(job_ids)}))


def cancel_all(
    tx: Connection, job_ids: Sequence[str], act: Act | None = None, states: Collection[JobState] | None = None
) -> set[str]:
    """Cancel those of these jobs that are queued or in progress, as ``cancel`` does, and return their ids.

    ``states``: only those that are in one of them.
    """
    transition = JobTransition(tx, job_ids)
    wanted = [state for state in ACTIVE if states is None or state in states]
    active = {job_id for job_id, state in transition.states.items() if state in wanted}
    if active:
        transition.stop(dict.fromkeys(active))
        transition.write()
        if act is not None:
            first, *_ = in_order = sorted(active)
            act.note(tx, first, transition.only_tenant(active), job_ids=in_order)
    return active


def cancel(tx: Connection, job_id: str, act: Act | None = None) -> JobState:
    """Cancel a job, and return its state afterwards. Raises NotFound.

    Its waiting stage runs are cancelled at once. While one runs, the job is ``cancelling``, until its worker has
    stopped it. A job that has ended keeps its state. If another job is let in instead, nobody rings for it: workers
    with free slots find it when they poll.
    """
    transition = JobTransition.of_job(tx, job_id)
    if transition.states[job_id] in ACTIVE:
        transition.stop({job_id: None})
        transition.write()
        if act is not None:
            act.note(tx, job_id, transition.only_tenant([job_id]))
    return transition.states[job_id]


def withdraw(tx: Connection, job_ids: Sequence[str]) -> None:
    """Cancel jobs that were submitted a moment ago and are not wanted, and free their idempotency keys."""
    cancel_all(tx, sorted(job_ids))
    free_keys(tx, job_ids)


def free_keys(tx: Connection, job_ids: Iterable[str]) -> None:
    """Free the idempotency keys of jobs that are cancelled: whoever submits under these keys again makes new jobs."""
    tx.execute(update(JobRow).where(JobRow.id.in_(sorted(job_ids))).values(idempotency_key=None))
