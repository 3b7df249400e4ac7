"""Fork: a new job that takes over the earlier stages of another one, and runs the later ones with other settings.

The fork's rows are those of a submit. The stage runs that it takes over have succeeded in it without an attempt: they
have the results, payloads and artifacts of the other job's. A small payload stands in both rows; an object in the store
is shared, and kept as long as a row of either job refers to it (``omni_jobs.jobs.keep.garbage``).
"""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, bindparam, func, insert, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.statement import Statements, listed
from omni_jobs.database.tables import ArtifactRow, ForkRow, JobRow, StageRunRow
from omni_jobs.errors import Conflict, NotFound, OmniJobsError
from omni_jobs.identity import PipelineId
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.jobs.keep.retention import KEEPS_PAYLOADS
from omni_jobs.jobs.life import submit
from omni_jobs.jobs.life.kept_artifacts import check_artifacts
from omni_jobs.jobs.life.successors import Run
from omni_jobs.jobs.life.transition import JobTransition
from omni_jobs.jobs.values import SubmitResult
from omni_jobs.new_job import NewJob, Origin, Reuse
from omni_jobs.priority import Priority
from omni_jobs.states import StageRunState

_sql = Statements(__file__)
_INSERT_SHARED_OBJECTS = _sql.bulk("insert_shared_objects", "key job_id")
_ORIGIN = select(JobRow.__table__, KEEPS_PAYLOADS).where(JobRow.id == bindparam("job"))
_STAGES = select(
    StageRunRow.stage,
    StageRunRow.payload_gone,
    StageRunRow.payload_bytes,
    func.coalesce(func.length(StageRunRow.result), 0).label("result_bytes"),
).where(StageRunRow.job_id == bindparam("job"))
_ARTIFACTS = (
    select(StageRunRow.stage, ArtifactRow.ref)
    .join(ArtifactRow, ArtifactRow.stage_run_id == StageRunRow.id)
    .where(StageRunRow.job_id == bindparam("job"))
)
_NOTE_ORIGIN = insert(ForkRow).values(job_id=bindparam("job"), origin=bindparam("origin"))
_DROP_INPUTS = update(JobRow).where(JobRow.id == bindparam("job")).values(inputs_gone=True)
_FIELD: Final = "from_stage"


def origin(tx: Connection, job_id: str, tenant: str | None = None) -> Origin:
    """Return what a fork of this job is made of. Raises NotFound, also for a job of another ``tenant`` (None: any)."""
    job = tx.execute(_ORIGIN, {"job": job_id}).one_or_none() if job_id.isprintable() else None
    if job is None or tenant not in (None, job.tenant):
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    stored = {
        run.stage: run.result_bytes + (0 if run.payload_gone else run.payload_bytes or 0)
        for run in tx.execute(_STAGES, {"job": job_id})
    }
    for stage, ref in tx.execute(_ARTIFACTS, {"job": job_id}):
        stored[stage] += ref["size"]
    return Origin(
        job_id=job.id,
        pipeline=PipelineId(job.pipeline, job.pipeline_digest),
        pipeline_version=job.pipeline_version,
        request=job.request,
        media=job.media,
        metadata=job.metadata,
        seed=job.seed,
        priority=Priority(job.priority),
        cost=job.cost,
        keeps_payloads=job.keeps_payloads,
        stored_bytes=stored,
    )


def fork(
    tx: Connection, rows: submit.JobRows, only_known_tenants: bool = False, act: Act | None = None
) -> SubmitResult:
    """Write a job that takes over stages of another one, as its ``reuse`` says, and return its result.

    The other job may run; it stays as it is. As in a submit, the result is the job that has the idempotency key
    already, with ``created`` False. Raises the errors of a submit; NotFound if the other job was deleted; and Conflict
    for a stage that has not succeeded, for a payload that a stage to run needs and that is not kept, and for an
    artifact that the fork is to have and that is not kept.
    """
    job, reuse = rows.job, rows.job.reuse
    if reuse is None:
        raise ValueError(f"job {job.job_id} takes over nothing: submit it")
    is_written = tx.execute(select(JobRow.id).where(JobRow.id == job.job_id)).first() is not None
    if not is_written:  # else by an earlier try of this transaction, whose answer was lost
        transition = JobTransition.of_job(tx, reuse.job_id)
        runs = {run.stage: run for run in transition.runs_of(reuse.job_id)}
    [result] = submit.submit(tx, [rows], only_known_tenants)
    if isinstance(result, OmniJobsError):
        raise result
    if is_written or not result.created:
        return result
    _check(tx, job, reuse, runs)  # behind the submit: a job that has the key already is the answer, whatever is kept
    _take_over(tx, job, reuse, runs)
    stored = stored_bytes.of_jobs(tx, [job.job_id])[job.tenant]
    stored_bytes.add(tx, {job.tenant: stored - rows.stored_bytes})
    if act is not None:
        act.note(tx, reuse.job_id, job.tenant, fork=job.job_id)
    return SubmitResult(job.job_id, True, result.queues, traceparent=job.traceparent)


def _check(tx: Connection, job: NewJob, reuse: Reuse, runs: Mapping[str, Run]) -> None:
    """Raise Conflict unless these stages have succeeded, and what the fork needs of them is kept.

    It needs the payloads that its own stages take, and the artifacts that it asks for.
    """
    for stage in job.stages:
        if stage.name in reuse.stages and runs[stage.name].state != StageRunState.SUCCEEDED:
            state = runs[stage.name].state.value
            text = f"stage {stage.name} of job {reuse.job_id} is {state}: a fork takes over what has succeeded"
            raise Conflict(text, field=_FIELD)
    for name in sorted(_taken(job, reuse)):
        if not any(name in other.inputs for other in runs.values()):
            text = f"stage {name} of job {reuse.job_id} left no payload, because no stage of that job took it"
            raise Conflict(f"{text}: fork from stage {name}", field=_FIELD)
        if runs[name].payload_gone:
            text = f"the payload of stage {name} of job {reuse.job_id} is not kept any longer: fork from stage {name}"
            raise Conflict(f"{text}. A job with keep_payloads keeps its payloads for a time", field=_FIELD)
    check_artifacts(tx, reuse.job_id, reuse.artifacts, "fork from that stage, or leave out its modality")


def _taken(job: NewJob, reuse: Reuse) -> set[str]:
    """Return the stages taken over whose payloads the fork's own stages take."""
    return {name for stage in job.stages if stage.name not in reuse.stages for name in stage.inputs} & reuse.stages


def _take_over(tx: Connection, job: NewJob, reuse: Reuse, runs: Mapping[str, Run]) -> None:
    """Copy the rows of the stages that are taken over, and share their objects.

    Payloads that no stage of the fork takes are left out, unless it keeps its payloads for forks of its own.
    """
    given = {"job": job.job_id, "origin": reuse.job_id, "ids": listed(sorted(reuse.stages))}
    _sql["copy_stage_runs"].rows(tx, given)
    _sql["copy_artifacts"].rows(tx, given)
    tx.execute(_NOTE_ORIGIN, given)
    if job.media:
        tx.execute(_DROP_INPUTS, given)
    kept = reuse.stages if job.keeps_payloads else _taken(job, reuse)
    _sql["drop_payloads"].rows(tx, {"job": job.job_id, "ids": listed(sorted(reuse.stages - kept))})
    refs = tx.execute(select(ArtifactRow.ref).where(ArtifactRow.job_id == job.job_id)).scalars()
    payloads = {runs[name].payload_key for name in kept}
    keys = {key for key in payloads if key is not None}.union(ref["key"] for ref in refs)
    _INSERT_SHARED_OBJECTS.run(tx, [(key, job.job_id) for key in sorted(keys)])
