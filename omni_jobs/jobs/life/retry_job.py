"""Retry: run an ended job again at its user's wish, from the stage that failed or from an earlier one."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.statement import AnyRow
from omni_jobs.database.tables import (
    RETRY_TOKEN,
    ArtifactRow,
    AttemptErrorRow,
    EventRow,
    GarbageRow,
    JobRow,
    StageRunRow,
    encode_json,
)
from omni_jobs.errors import Conflict, InvalidRequest, NotFound, Unauthenticated
from omni_jobs.identity import PipelineId
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.jobs.keep.garbage import INSERT_GARBAGE
from omni_jobs.jobs.life.abandon import ask_for
from omni_jobs.jobs.life.kept_artifacts import check_artifacts
from omni_jobs.jobs.life.noted_changes import note
from omni_jobs.jobs.life.successors import QUOTA, Run
from omni_jobs.jobs.life.transition import INSERT_EVENT, QUEUE_IF_PENDING, JobTransition
from omni_jobs.jobs.order import quota
from omni_jobs.jobs.order.take_turns import take_turns
from omni_jobs.jobs.order.virtual_times import Wish
from omni_jobs.jobs.values import Change
from omni_jobs.new_job import NewVersion
from omni_jobs.priority import Priority, queue_of
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState

KEPT_EVENTS: Final = 100
"""The newest events of a job that a retry keeps: who retries and cancels without end fills no database."""

KEPT_ATTEMPTS: Final = 100
"""The newest attempts of a stage run whose errors a retry keeps."""

_RETRIED = "job.retried"

# All that claims, reports and progress write, except the attempt, which goes on, and the snapshot, which an end drops.
# A column that ``complete_if_running`` writes belongs here, too; but the usage, which adds up over all attempts.
_START_OVER = (
    update(StageRunRow)
    .where(StageRunRow.id.in_(bindparam("ids", expanding=True)))
    .values(
        state=StageRunState.PENDING.value,
        failures=None,
        owner=None,
        apart=None,
        reason=None,
        due=None,
        queue_deadline=None,
        queued_at=None,
        started_at=None,
        finished_at=None,
        progress=None,
        result=None,
        payload_ref=None,
        payload_inline=None,
        payload_bytes=None,
        payload_gone=False,
        taken_from=None,
        finish_reason=None,
        warnings=None,
        steps=None,
    )
)
_MEDIA = select(JobRow.id, JobRow.media, JobRow.inputs_gone).where(JobRow.id == bindparam("job"))
_RUNS = (
    select(StageRunRow.stage, StageRunRow.state, StageRunRow.inputs, StageRunRow.payload_gone)
    .where(StageRunRow.job_id == bindparam("job"))
    .order_by(StageRunRow.position)
)
_newest = select(func.max(EventRow.number)).where(EventRow.job_id == bindparam("job")).scalar_subquery()
_FORGET_EVENTS = delete(EventRow).where(EventRow.job_id == bindparam("job"), EventRow.number <= _newest - KEPT_EVENTS)
_attempts = select(StageRunRow.attempt).where(StageRunRow.id == AttemptErrorRow.stage_run_id).scalar_subquery()
_FORGET_ERRORS = delete(AttemptErrorRow).where(
    AttemptErrorRow.stage_run_id.in_(bindparam("ids", expanding=True)),
    AttemptErrorRow.attempt <= _attempts - KEPT_ATTEMPTS,
)


def retry(
    tx: Connection,
    job_id: str,
    from_stage: str | None,
    artifacts: Mapping[str, str],
    retry_token: str,
    only_known_tenants: bool = False,
    act: Act | None = None,
    states: Collection[JobState] | None = None,
    onto: NewVersion | None = None,
) -> set[str]:
    """Run an ended job again, and return the queues to ring.

    These stages run again: those that did not succeed, ``from_stage``, and all that follow them. They have all their
    retries again, and the job loses its deadline. Whoever retries a job asks for it.

    ``artifacts`` are those that the job makes: names without suffixes, each with its stage. ``retry_token`` is a random
    text, the same whenever this transaction is tried again. It is kept in the job's event, so that a try whose
    predecessor was committed changes nothing and returns the same queues. ``states``: the job is to be in one of these.
    ``onto``: the version of its pipeline on which they run; None: the job's own.

    Raises NotFound, and InvalidRequest for an unknown ``from_stage``. Raises Conflict while the job has not ended, is
    in none of the ``states``, or its objects are being deleted, when no stage is to run, and when an input is not kept
    any longer or an artifact of a stage that does not run again; its message then says where to retry, or to submit
    anew. So it does where a stage that runs again cannot run ``onto`` that version. With ``only_known_tenants`` it
    raises Unauthenticated for a job whose tenant has no row.
    """
    ask_for(tx, [job_id])  # before the job is locked, as the rescuer takes these locks
    transition = JobTransition.of_job(tx, job_id)
    state = transition.states[job_id]
    if _is_committed(tx, job_id, retry_token):
        return transition.queues(transition.runs_of(job_id))
    if not state.is_final:
        raise Conflict(f"job {job_id} is {state.value}: only a job that has ended can be retried", field="job_id")
    if states is not None and state not in states:
        raise Conflict(f"job {job_id} is {state.value} now, which was not to be retried", field="job_id")
    by_prefix = exists().where(GarbageRow.owner == job_id, GarbageRow.what.endswith("/"))
    if tx.execute(select(by_prefix)).scalar_one():
        # Its objects are being deleted; a new attempt's must not be among them. A single key is of an old attempt.
        raise Conflict(f"job {job_id} is being cleaned up: try again in some seconds", field="job_id")
    runs = {run.stage: run for run in transition.runs_of(job_id)}
    again = _to_run_again(job_id, runs, from_stage)
    in_order = [run for run in runs.values() if run.stage in again]  # of the pipeline's stages
    _check_inputs(tx.execute(_MEDIA, {"job": job_id}).one(), runs, again)
    kept = {name: stage for name, stage in artifacts.items() if stage in runs and stage not in again}
    check_artifacts(tx, job_id, kept, "retry from that stage, or submit it anew")
    before = stored_bytes.of_jobs(tx, [job_id])
    queue_by_stage = {run.stage: run.queue for run in in_order} if onto is None else _move(tx, job_id, in_order, onto)
    _start_over(tx, job_id, in_order, retry_token, transition.now)
    limited = _give_turn(tx, job_id, only_known_tenants)
    ready = [run for run in in_order if not again.intersection(run.inputs)]
    queues = _queue(tx, job_id, ready, limited, transition.now, queue_by_stage)
    stored_bytes.add(tx, stored_bytes.change(before, stored_bytes.of_jobs(tx, [job_id])))
    if act is not None:
        version = {} if onto is None else {"version": onto.version}
        act.note(tx, job_id, transition.only_tenant([job_id]), from_stage=from_stage, **version)
    note([Change(job_id, JobState.QUEUED, traceparent=transition.traceparents.get(job_id))])
    return queues


def retries(tx: Connection, job_id: str) -> dict[str | None, str | None]:
    """Return from which stages an ended job may be retried, None for what did not succeed; and else why it may not.

    The stages are in their order. What is checked besides when it is retried, such as artifacts, may refuse it still.
    Raises NotFound.
    """
    job = tx.execute(_MEDIA, {"job": job_id}).one_or_none()
    if job is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    runs: dict[str, AnyRow] = {run.stage: run for run in tx.execute(_RUNS, {"job": job_id})}
    found: dict[str | None, str | None] = {}
    for from_stage in (None, *runs):
        try:
            _check_inputs(job, runs, _to_run_again(job_id, runs, from_stage))
        except Conflict as error:
            found[from_stage] = error.message
        else:
            found[from_stage] = None
    return found


def _to_run_again(job_id: str, runs: Mapping[str, Run | AnyRow], from_stage: str | None) -> set[str]:
    """Return the stages to run: those that did not succeed, ``from_stage``, and all that follow from these."""
    if from_stage is not None and from_stage not in runs:
        raise InvalidRequest(f"job {job_id} has no stage {from_stage!r:.80}", field="from_stage")
    again = {stage for stage, run in runs.items() if run.state != StageRunState.SUCCEEDED or stage == from_stage}
    if not again:
        raise Conflict(f"job {job_id} has completed: name the stage to run it again from", field="from_stage")
    has_grown = True
    while has_grown:
        has_grown = False
        for stage, run in runs.items():
            if stage not in again and again.intersection(run.inputs):
                again.add(stage)
                has_grown = True
    return again


def _check_inputs(job: AnyRow, runs: Mapping[str, Run | AnyRow], again: Collection[str]) -> None:
    """Raise Conflict when an input of the stages ``again`` is not kept; it names the stage to retry from."""
    needed = set(again)
    gone: set[str] = set()
    unchecked = list(again)
    while unchecked:
        for earlier in runs[unchecked.pop()].inputs:
            if earlier not in needed and runs[earlier].payload_gone:
                gone.add(earlier)
                needed.add(earlier)
                unchecked.append(earlier)
    if job.inputs_gone and job.media and any(not runs[stage].inputs for stage in needed):
        raise Conflict(f"the media of job {job.id} are not kept any longer: submit it anew", field="job_id")
    if gone:
        first = [stage for stage in runs if stage in gone and not gone.intersection(runs[stage].inputs)]
        raise Conflict(
            f"the payload of stage {', '.join(sorted(gone))} is not kept any longer: "
            f"retry from stage {' or '.join(first)}",
            field="from_stage",
        )


def _move(tx: Connection, job_id: str, runs: Sequence[Run], onto: NewVersion) -> dict[str, str]:
    """Let a job and these of its stage runs be of another version; return their queues by stage.

    Raises Conflict if they cannot run there.
    """
    if differing := [f"{run.stage} {onto.differs[run.stage]}" for run in runs if run.stage in onto.differs]:
        raise Conflict(f"the job cannot go on in version {onto.version}: {'; '.join(differing)}", field="version")
    of_job = {"pipeline_digest": onto.pipeline.digest, "pipeline_version": onto.version}
    change = update(JobRow).where(JobRow.id == job_id).values(**of_job).returning(JobRow.priority)
    priority = Priority(tx.execute(change).scalar_one())
    queues: dict[str, str] = {}
    for run in runs:
        stage = onto.stages[run.stage]
        queues[run.stage] = queue_of(stage.queue, priority)
        values = {
            "pipeline_digest": onto.pipeline.digest,
            "queue": queues[run.stage],
            "retries": None if stage.retries == DEFAULT_RETRIES else stage.retries.model_dump(exclude_defaults=True),
            "queue_limit_s": stage.queue_limit_s,
        }
        tx.execute(update(StageRunRow).where(StageRunRow.id == run.id).values(**values))
    return queues


def _start_over(tx: Connection, job_id: str, runs: list[Run], retry_token: str, at: float) -> None:
    """Delete the payloads and artifacts of these stage runs, and queue the job like a new one.

    Events and errors of long ago go as well.
    """
    keys = [run.payload_key for run in runs if run.payload_key is not None]
    ids = [run.id for run in runs]
    keys += [
        ref["key"] for ref in tx.execute(select(ArtifactRow.ref).where(ArtifactRow.stage_run_id.in_(ids))).scalars()
    ]
    if keys:
        tx.execute(delete(ArtifactRow).where(ArtifactRow.stage_run_id.in_(ids)))
        INSERT_GARBAGE.run(tx, [(job_id, key) for key in keys])
    tx.execute(_START_OVER, {"ids": ids})
    tx.execute(
        update(JobRow)
        .where(JobRow.id == job_id)
        .values(
            state=JobState.QUEUED.value,
            ending=None,
            error=None,
            error_code=None,
            deadline=None,
            retries=JobRow.retries + 1,
            started_at=None,
            finished_at=None,
            prune_at=None,
            payloads_gone=False,
            artifacts_gone=False,
        )
    )
    data = {"stages": [run.stage for run in runs], RETRY_TOKEN: retry_token}
    INSERT_EVENT.run(tx, [(job_id, _RETRIED, encode_json(data), at)])
    tx.execute(_FORGET_EVENTS, {"job": job_id})
    tx.execute(_FORGET_ERRORS, {"ids": ids})


def _queue(
    tx: Connection,
    job_id: str,
    ready: Sequence[Run],
    limited: Wish | None,
    at: float,
    queue_by_stage: Mapping[str, str],
) -> set[str]:
    """Queue the stage runs that can begin, or hold them by the quota of their tenant; return the queues to ring."""
    if limited is not None:
        tx.execute(update(StageRunRow).where(StageRunRow.id.in_([run.id for run in ready])).values(reason=QUOTA))
        return quota.enter(tx, {job_id: limited})
    QUEUE_IF_PENDING.run(tx, [(run.id, at) for run in ready])
    return {queue_by_stage[run.stage] for run in ready}


def _give_turn(tx: Connection, job_id: str, only_known_tenants: bool) -> Wish | None:
    """Give the job a new turn, as if it had been submitted now.

    Return its wish for one if its tenant has the limit ``running_jobs``, whose quota gives the turn; else None.
    """
    columns = (JobRow.pipeline, JobRow.tenant, JobRow.priority, JobRow.pipeline_digest, JobRow.cost)
    job = tx.execute(select(*columns).where(JobRow.id == job_id)).one()
    stages = tx.execute(select(StageRunRow.stage).where(StageRunRow.job_id == job_id)).scalars()
    wish = Wish(
        PipelineId(job.pipeline, job.pipeline_digest), job.tenant, Priority(job.priority), tuple(stages), job.cost
    )
    [turn], _, limited, unknown = take_turns(tx, [wish])
    if only_known_tenants and unknown:
        raise Unauthenticated
    tx.execute(update(StageRunRow).where(StageRunRow.job_id == job_id).values(turn=turn))
    return wish if job.tenant in limited else None


def _is_committed(tx: Connection, job_id: str, retry_token: str) -> bool:
    """Return whether an earlier try of this transaction was committed and its answer lost."""
    last = tx.execute(
        select(EventRow.data)
        .where(EventRow.job_id == job_id, EventRow.type == _RETRIED)
        .order_by(EventRow.number.desc())
        .limit(1)
    ).scalar_one_or_none()
    return last is not None and last[RETRY_TOKEN] == retry_token
