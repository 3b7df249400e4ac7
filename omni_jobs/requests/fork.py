"""A fork's request: what to do otherwise than another job, from one of its stages on. It is checked as a submit is.

parse_fork(body, settings) → Fork                  its form
submission_of(fork, origin, pipelines) → Submission  the other job's request, with the changes
admit_fork(submission, fork, origin, pipelines) → NewJob
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from omni_jobs.errors import Conflict, InvalidRequest
from omni_jobs.new_job import NewJob, Origin, Reuse
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.prompts.renderers import Renderers
from omni_jobs.requests.admission import check_caller, check_for_processor, choices_of, job_of
from omni_jobs.requests.cost import cost_of
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.json_body import parse_body
from omni_jobs.requests.options import modalities_of
from omni_jobs.requests.submission import Submission, request_digest
from omni_jobs.tenants.caller import ANYONE, Caller

if TYPE_CHECKING:
    from omni_jobs.pipelines.loader import Pipelines
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.settings import Settings

FROM_STAGE: Final = "from_stage"
CHANGEABLE: Final = (
    *("modalities", "audio", "image", "video", "stages", "seed", "previews"),
    *("metadata", "priority", "expires_at", "keep_payloads"),
)
"""The fields of a job's request that a fork may change."""

_FORMATS: Final = ("audio", "image", "video")
_TOOL_USE: Final = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork, correct in form.

    from_stage       this stage and all that follow it run anew
    changes          fields of a JobRequest, those of CHANGEABLE
    digest           the ``request_digest`` of what the client sent
    size             how many bytes came
    caller           for whom the fork is
    idempotency_key  the caller's name for it
    expires_in_s     seconds from its submit on after which it stops by itself
    """

    from_stage: str
    changes: Mapping[str, Any]
    digest: str
    size: int
    caller: Caller = ANYONE
    idempotency_key: str | None = None
    expires_in_s: float | None = None

    def digest_of(self, job_id: str) -> str:
        """Return the digest of a fork of this job: it is the same again if that is equal."""
        return request_digest({"fork": job_id, "sent": self.digest})


def parse_fork(
    body: bytes | bytearray,
    settings: Settings,
    *,
    caller: Caller = ANYONE,
    idempotency_key: str | None = None,
    expires_in_s: float | None = None,
) -> Fork:
    """Return the fork that a body in JSON is. Raises InvalidRequest and RequestTooLarge naming the field."""
    changes = parse_body(body, settings.max_body_bytes, settings.max_text_bytes)
    digest = request_digest(changes)
    from_stage = changes.pop(FROM_STAGE, None)
    if not isinstance(from_stage, str):
        raise InvalidRequest("the name of a stage is required", field=FROM_STAGE)
    for name in changes:
        if name not in CHANGEABLE:
            problem = "a fork has the messages, the pipeline and the tools of its job, because earlier stages read them"
            if name not in JobRequest.model_fields:
                problem = f"a fork has no such field; it has: {', '.join((FROM_STAGE, *CHANGEABLE))}"
            elif name not in ("messages", "model", "prompt_embeds", *_TOOL_USE):
                problem = "of a fork it stands in stages, by stage"
            raise InvalidRequest(problem, field=name[:64])
    return Fork(from_stage, changes, digest, len(body), caller, idempotency_key, expires_in_s)


def submission_of(fork: Fork, origin: Origin, pipelines: Pipelines) -> Submission:
    """Return the whole request of a fork: that of the job that it is forked from, with the changes.

    Raises InvalidRequest naming the field, NotFound for a pipeline that is not served, and Conflict for a job of
    another pipeline file than the one that is.
    """
    pipeline = pipelines.of(origin.pipeline) or pipelines.named(origin.pipeline.name)
    _check_file(origin, pipeline)
    changes = JobRequest.parse({**fork.changes, "model": pipeline.reference})  # wrong types end here
    modalities = list(fork.changes.get("modalities") or origin.request["modalities"])
    stages = pipeline.stages_for(modalities_of(changes.model_copy(update={"modalities": modalities}), pipeline))
    whole: dict[str, Any] = {
        "model": pipeline.reference,
        "modalities": modalities,
        "stages": _parameters(changes, origin, stages),
        "seed": origin.seed,
        "metadata": dict(origin.metadata),
        "priority": origin.priority.value,
        "return_token_ids": origin.request.get("return_token_ids", False),
        "previews": origin.request.get("previews"),
        "keep_payloads": origin.keeps_payloads,
    }
    whole |= {name: origin.request[name] for name in _TOOL_USE if name in origin.request}
    given = {name: value for name, value in fork.changes.items() if value is not None}
    whole |= {name: given[name] for name in given if name not in ("modalities", "stages", *_FORMATS)}
    for name in _FORMATS:
        its_own = origin.request.get(name, {}) if name in modalities else {}
        if options := {**its_own, **given.get(name, {})}:
            whole[name] = options
    return Submission(
        JobRequest.parse(whole),
        fork.digest_of(origin.job_id),
        fork.size,
        fork.caller,
        fork.idempotency_key,
        fork.expires_in_s,
    )


def admit_fork(
    submission: Submission,
    fork: Fork,
    origin: Origin,
    pipelines: Pipelines,
    settings: Settings,
    models: Renderers | None = None,
) -> NewJob:
    """Check a fork against its pipeline, and return its job. Whether the stages have left what it needs, SQL knows.

    Raises as ``admit`` does, InvalidRequest for a change that no stage to run would see, and Conflict for a fork whose
    stages read media.
    """
    request = submission.request
    check_caller(submission)
    pipeline = pipelines.named(request.model)
    pipelines.check_takes_jobs(pipeline)
    choices = choices_of(request, pipeline, models or Renderers(settings))
    names = [stage.name for stage in choices.stages]
    if fork.from_stage not in names:
        known = ", ".join(names)
        raise InvalidRequest(f"the fork has no such stage; it has: {known}", field=FROM_STAGE)
    again = _to_run(fork.from_stage, choices.stages, origin.stored_bytes)
    _check_modalities(request, origin, pipeline, again)
    _check_changes(fork, pipeline, again)
    reads_request = any(stage.name in again and not stage.inputs for stage in choices.stages)
    if reads_request and origin.media:
        text = "this stage reads the media of the job, which a fork does not have: submit them anew, or fork later"
        raise Conflict(text, field=FROM_STAGE)
    prompt = {name: origin.request[name] for name in ("messages", "prompt_embeds") if name in origin.request}
    admitted = {"model": pipeline.name, **prompt, **choices.admitted}
    running = [stage for stage in choices.stages if stage.name in again]
    for stage in running:
        check_for_processor(stage, admitted)
    cost = cost_of(running, choices.parameters)
    if reads_request:
        cost = max(cost, origin.cost)  # it reads the prompt again, whose tokens nobody counts anew
    job = job_of(submission, pipeline, choices.stages, admitted, (), cost)
    reused = frozenset(names) - again
    artifacts = pipeline.artifacts_of(job.modalities)
    reuse = Reuse(
        job_id=origin.job_id,
        stages=reused,
        stored_bytes=sum(origin.stored_bytes[name] for name in reused),
        artifacts={name: stage for name, stage in artifacts.items() if stage in reused},
    )
    return replace(job, media=origin.media, reuse=reuse)


def _check_file(origin: Origin, pipeline: Pipeline) -> None:
    """Raise Conflict for a job of another pipeline file, because its payloads are for that one's stages."""
    if origin.pipeline != pipeline.id:
        theirs = f"version {origin.pipeline_version}, digest {origin.pipeline.digest}"
        ours = f"version {pipeline.version}, digest {pipeline.digest}"
        raise Conflict(
            f"job {origin.job_id} has another file of pipeline {pipeline.name} ({theirs}) than this server ({ours}): "
            "submit it anew",
            field="job_id",
        )


def _parameters(changes: JobRequest, origin: Origin, stages: Sequence[StageConfig]) -> dict[str, dict[str, Any]]:
    """Return the parameters of the job for the fork's stages, with the changes."""
    types = {stage.name: stage.parameters_type for stage in stages}
    of_job = {name: dict(values) for name, values in origin.request.get("parameters", {}).items() if name in types}
    for name in of_job:
        for stands_in, other in types[name].instead_of.items():
            if of_job[name].get(stands_in) is not None:
                of_job[name].pop(other, None)  # an earlier release took both, and this one decided nothing
    for name, values in (changes.stages or {}).items():
        of_job[name] = types.get(name, StageParameters).changed(of_job.get(name, {}), values)
    return of_job


def _to_run(from_stage: str, stages: Sequence[StageConfig], known: Collection[str]) -> frozenset[str]:
    """Return the stages that run: this one, those that the job did not have, and all that follow these."""
    again: set[str] = set()
    for stage in stages:  # each after its inputs
        if stage.name == from_stage or stage.name not in known or again.intersection(stage.inputs):
            again.add(stage.name)
    return frozenset(again)


def _check_modalities(request: JobRequest, origin: Origin, pipeline: Pipeline, again: Collection[str]) -> None:
    """Raise InvalidRequest for a modality that a stage does not make any more, because the job did not ask for it."""
    for number, modality in enumerate(request.modalities or ()):
        stage = pipeline.outputs[modality].stage
        if modality not in origin.request["modalities"] and stage not in again:
            text = f"stage {stage} did not make it for job {origin.job_id}: fork from stage {stage}"
            raise InvalidRequest(text, field=f"modalities.{number}")


def _check_changes(fork: Fork, pipeline: Pipeline, again: Collection[str]) -> None:
    """Raise InvalidRequest for a change of a stage that does not run, because nobody would see it."""
    changed = {f"stages.{name}": name for name in fork.changes.get("stages") or ()}
    for name in _FORMATS:
        if fork.changes.get(name) and name in pipeline.outputs:
            changed[name] = pipeline.outputs[name].stage
    for field, stage in changed.items():
        if stage not in again:
            raise InvalidRequest(f"the fork takes over stage {stage}: fork from it to change it", field=field)
