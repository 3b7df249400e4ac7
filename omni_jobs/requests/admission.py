"""Admission: a request is checked against its pipeline, whole, before anything of it is stored."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from omni_jobs.errors import InvalidRequest, MissingScope
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob, NewMedium, NewStage, new_job_id
from omni_jobs.pipelines.plugins import named_object
from omni_jobs.priority import Priority
from omni_jobs.prompts.renderers import ParametersRenderer, PromptRenderer, Renderers, renderer_errors
from omni_jobs.requests.content import Contents, check_embeds, check_input_pixels, measure
from omni_jobs.requests.cost import cost_of, estimated_tokens
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.options import check_token_ids, modalities_of, outputs_of, parameters_of
from omni_jobs.requests.submission import Submission
from omni_jobs.requests.tool_use import tool_use_of
from omni_jobs.tenants.caller import Scope

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.loader import Pipelines
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.settings import Settings


def admit(
    submission: Submission,
    pipelines: Pipelines,
    settings: Settings,
    models: Renderers | None = None,
    *,
    wall: MediaWall | None = None,
) -> NewJob:
    """Check a submission against its pipeline, whole, and return its job, with media that are not stored yet.

    Media are decoded last. ``models``: the caller's renderers; None: new ones. ``wall``: the caller's decoders; None:
    decoders are started for this request.

    Raises InvalidRequest and RequestTooLarge naming the field, NotFound for an unknown pipeline, ModelMissing where
    this host lacks the pipeline's checkpoint, DecodersUnavailable where no decoder takes the media just now, and
    MissingScope for a priority that the caller may not ask for. Raises VersionDraining and VersionChanged for a version
    that takes no new jobs.
    """
    request = submission.request
    check_caller(submission)
    pipeline = pipelines.named(request.model)
    pipelines.check_takes_jobs(pipeline)
    choices = choices_of(request, pipeline, models or Renderers(settings))
    stages, parameters, renderer = choices.stages, choices.parameters, choices.renderer
    contents = Contents(pipeline, settings, submission.fetched)
    embeds = _prompt_embeds(request, pipeline)
    messages = contents.convert(request.messages or ())
    contents.count(choices.tool_use)
    admitted: dict[str, Any] = {"model": pipeline.name, "messages": messages, **choices.admitted}
    admitted |= {"kept": submission.kept} if submission.kept else {}
    if embeds is not None:
        admitted["prompt_embeds"] = {"media": 0}
        with renderer_errors(pipeline.name):
            prompt_tokens: float = check_embeds(embeds, renderer, stages)
        media = [NewMedium("application/vnd.safetensors", embeds)]
    else:
        check = partial(_check_prompt, contents, renderer, admitted, stages)
        media, prompt_tokens = _check_media(contents, settings, wall, renderer, check)
    return job_of(submission, pipeline, stages, admitted, media, cost_of(stages, parameters, prompt_tokens))


class Choices(NamedTuple):
    """What a request chooses of what its pipeline offers, checked."""

    stages: Sequence[StageConfig]  # that the job runs
    parameters: Mapping[str, Mapping[str, Any]]  # that it sets, by stage
    renderer: PromptRenderer | None  # of the pipeline
    tool_use: Mapping[str, Any]
    admitted: Mapping[str, Any]  # NewJob.request but for the model and the prompt


def choices_of(request: JobRequest, pipeline: Pipeline, models: Renderers) -> Choices:
    """Return what a request chooses: all of it but its prompt.

    Raises InvalidRequest naming the field, and ModelMissing where this host lacks the pipeline's checkpoint.
    """
    modalities = modalities_of(request, pipeline)
    stages = pipeline.stages_for(modalities)
    check_token_ids(request, stages)
    outputs = outputs_of(request, pipeline, modalities)
    parameters = parameters_of(request, pipeline, stages)
    renderer = models.of(pipeline)
    _check_parameters(renderer, pipeline, stages, parameters)
    tool_use = tool_use_of(request, pipeline, stages, parameters, renderer)
    admitted: dict[str, Any] = {
        "modalities": list(modalities),
        "parameters": parameters,
        "return_token_ids": request.return_token_ids,
    }
    admitted |= outputs | tool_use | ({"previews": True} if request.previews else {})
    return Choices(stages, parameters, renderer, tool_use, admitted)


def job_of(
    submission: Submission,
    pipeline: Pipeline,
    stages: Sequence[StageConfig],
    admitted: Mapping[str, Any],
    media: Sequence[NewMedium],
    cost: float,
) -> NewJob:
    """Return the new job of a submission whose request was admitted."""
    request = submission.request
    return NewJob(
        job_id=new_job_id(),
        pipeline=pipeline.id,
        pipeline_version=pipeline.version,
        request=admitted,
        modalities=tuple(admitted["modalities"]),
        stages=[
            NewStage(each.name, tuple(each.inputs), pipeline.queue(each.name), each.retries, each.queue_limit_s)
            for each in stages
        ],
        seed=random.getrandbits(63) if request.seed is None else request.seed,  # no secret
        request_digest=submission.digest,
        unstored=media,
        metadata=request.metadata or {},
        tenant=submission.caller.tenant,
        priority=Priority(request.priority or Priority.NORMAL),
        cost=cost,
        idempotency_key=submission.idempotency_key,
        expires_in_s=submission.expires_in_s,
        expires_at=request.expires_at,
        keeps_payloads=request.keep_payloads is True,
    )


def check_caller(submission: Submission) -> None:
    """Raise for a deadline that is given twice, and MissingScope for a priority that the caller may not ask for."""
    if submission.request.expires_at is not None and submission.expires_in_s is not None:
        raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
    if submission.request.priority == "high" and not submission.caller.may(Scope.PRIORITY):
        raise MissingScope("high takes a key with the scope priority", field="priority")


def _prompt_embeds(request: JobRequest, pipeline: Pipeline) -> memoryview | None:
    """Return the safetensors file of the prompt's embeddings; None for a request with messages."""
    if request.prompt_embeds is None:
        if request.messages is None:
            raise InvalidRequest("is required", field="messages")
        return None
    if "prompt_embeds" not in pipeline.accepts:
        known = ", ".join(pipeline.accepts)
        raise InvalidRequest(f"pipeline {pipeline.name} takes no embeddings; it takes: {known}", field="prompt_embeds")
    if request.tools is not None:
        raise InvalidRequest("given, and prompt_embeds as well: tools stand in the prompt's text", field="tools")
    if request.messages is not None:
        raise InvalidRequest("given, and messages as well: a prompt is one or the other", field="prompt_embeds")
    return request.prompt_embeds.data.read("prompt_embeds.data")


def _check_parameters(
    renderer: PromptRenderer | None,
    pipeline: Pipeline,
    stages: Sequence[StageConfig],
    parameters: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise InvalidRequest for a parameter that the checkpoint of the stage which reads the request cannot follow."""
    reader = pipeline.reader
    if renderer is None or reader is None or reader not in stages or not isinstance(renderer, ParametersRenderer):
        return  # the last question is the dearest: it asks for each member of the protocol
    try:
        with renderer_errors(pipeline.name):
            renderer.check_parameters(reader.parameters_with(parameters.get(reader.name, {})))
    except InvalidRequest as error:
        error.field = f"stages.{reader.name}.{error.field}"
        raise


def _check_media(
    contents: Contents,
    settings: Settings,
    wall: MediaWall | None,
    renderer: PromptRenderer | None,
    check: Callable[[Sequence[MediaInfo]], float],
) -> tuple[list[NewMedium], float]:
    """Return the media of the messages and the prompt's tokens, both checked."""
    if not contents.media:
        return [], check(())
    longest_audio_s = None if renderer is None else renderer.longest_audio_s
    with nullcontext(wall) if wall is not None else MediaWall(settings) as decoders:
        infos, tokens = measure(contents.media, decoders, check, longest_audio_s)
    media = [NewMedium(info.media_type, medium.data) for medium, info in zip(contents.media, infos, strict=True)]
    return media, tokens


def check_for_processor(stage: StageConfig, request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a request of which the stage's input processor could make no prompt."""
    if (path := stage.processor_declaration.check) is not None:
        check = named_object(path, FunctionType)
        with renderer_errors(request["model"], f"check of {stage.processor}"):
            check(stage, request)


def _check_prompt(
    contents: Contents,
    renderer: PromptRenderer | None,
    request: Mapping[str, Any],
    stages: Sequence[StageConfig],
    infos: Sequence[MediaInfo],
) -> float:
    """Return the tokens of a prompt of messages, whose media have these sizes; an estimate where no model counts them.

    Raise InvalidRequest for a prompt of more tokens than the model takes, or of another form than a stage takes, and
    RequestTooLarge for pictures beyond a limit.
    """
    for stage in stages:
        for medium, info in zip(contents.media, infos, strict=True):
            check_input_pixels(stage, medium, info)
    for stage in stages:
        check_for_processor(stage, request)
    tokens = 0
    if renderer is not None:
        with renderer_errors(request["model"]):
            renderer.check(request)
            tokens = renderer.count_tokens(request, infos)
            limit = renderer.prompt_limit(stages)
            is_too_long = tokens > limit
        if is_too_long:
            raise InvalidRequest(f"the prompt has {tokens} tokens; the model takes at most {limit}", field="messages")
    return tokens or estimated_tokens(contents.text_bytes, infos)  # models of sounds and pictures count none
