"""The options of a request that its pipeline decides on: modalities, a voice, and parameters by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.pipelines.outputs import Output, output
from omni_jobs.requests.job_request import JobRequest, refuse

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig


def modalities_of(request: JobRequest, pipeline: Pipeline) -> tuple[str, ...]:
    """Return the modalities that the job makes, each once.

    A request that names none gets text, or the pipeline's first output where the pipeline makes no text. Raises
    InvalidRequest for a modality that the pipeline does not make.
    """
    known = tuple(pipeline.outputs)
    if request.modalities is None:
        return ("text",) if "text" in known else known[:1]
    for number, modality in enumerate(request.modalities):
        if modality not in known:
            raise InvalidRequest(
                f"pipeline {pipeline.name} does not make {modality!r:.60}; it makes: {', '.join(known)}",
                field=f"modalities.{number}",
            )
    return tuple(dict.fromkeys(request.modalities))


def check_token_ids(request: JobRequest, stages: Sequence[StageConfig]) -> None:
    """Raise InvalidRequest for a request of token ids where none of the job's ``stages`` generates tokens."""
    if request.return_token_ids and not any(stage.runner.token_ids for stage in stages):
        raise InvalidRequest("no stage of this job generates tokens", field="return_token_ids")


def outputs_of(request: JobRequest, pipeline: Pipeline, modalities: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the options of the outputs that the job makes, by modality: {"format"}, of audio {"voice", "format"}.

    Outputs of other packages have their default format. Raises InvalidRequest for a voice or a format that the pipeline
    does not have, and for options of an output that the job does not make.
    """
    given: dict[str, Any] = {"audio": request.audio, "image": request.image, "video": request.video}
    for modality, options in given.items():
        if options is not None and modality not in modalities:
            raise InvalidRequest(f'given, but "{modality}" is not among the modalities', field=modality)
    chosen: dict[str, dict[str, Any]] = {}
    for modality in modalities:
        if modality in given:
            options = given[modality]
            chosen[modality] = {"format": _format(output(modality), None if options is None else options.format)}
    if "audio" in chosen:
        chosen["audio"]["voice"] = _voice(request, pipeline)
    return chosen


def _format(made: Output, wanted: str | None) -> str:
    try:
        return made.format(wanted).name
    except ConfigError as error:
        raise InvalidRequest(error.message, field=f"{made.modality}.format") from None


def _voice(request: JobRequest, pipeline: Pipeline) -> str | None:
    """Return the voice of the job's speech: the request's or else the pipeline's first; None if it has no voices."""
    voice = request.audio.voice if request.audio is not None else None
    if voice is not None and voice not in pipeline.voices:
        known = ", ".join(pipeline.voices) or "none"
        raise InvalidRequest(f"unknown voice {voice!r}; pipeline {pipeline.name} has: {known}", field="audio.voice")
    return voice or next(iter(pipeline.voices), None)


def parameters_of(request: JobRequest, pipeline: Pipeline, stages: Sequence[StageConfig]) -> dict[str, dict[str, Any]]:
    """Return the parameters that the request sets, by stage, checked together with the stages' defaults.

    ``stages`` are those that the job runs. Raises InvalidRequest naming the field as the client wrote it.
    """
    running = {stage.name: stage for stage in stages}
    chosen: dict[str, dict[str, Any]] = {}
    for name, values in (request.stages or {}).items():
        if name not in pipeline.stages:
            known = ", ".join(pipeline.stages)
            raise InvalidRequest(
                f"pipeline {pipeline.name} has no such stage; it has: {known}", field=f"stages.{name:.64}"
            )
        if name not in running:
            raise InvalidRequest("this job's modalities do not need this stage", field=f"stages.{name}")
        chosen[name] = dict(values)
    fields: dict[tuple[str, str], str] = {}  # (stage, parameter) → the field at the request's top that sets it
    for field, name, value in _sampling(request):
        output = pipeline.outputs.get("text")
        if output is None or output.stage not in running:
            raise InvalidRequest("no stage of this job makes text; use stages", field=field)
        values = chosen.setdefault(output.stage, {})
        if name in values and values[name] != value:
            other = fields.get((output.stage, name), f"stages.{output.stage}.{name}")
            raise InvalidRequest(f"given twice, and not the same: see {other}", field=field)
        values[name] = value
        fields[output.stage, name] = field
    for stage, values in chosen.items():
        try:
            beyond = running[stage].beyond_limits(values)
        except ValidationError as error:
            raise _of_parameters(error, stage, fields) from None
        if beyond is not None:
            field = fields.get((stage, beyond.parameter), f"stages.{stage}.{beyond.parameter}")
            raise InvalidRequest(f"{beyond.problem} (a limit of this pipeline)", field=field)
        _check_set_once(running[stage], values)
    return chosen


def _check_set_once(stage: StageConfig, values: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a parameter that a job sets beside another that stands in its place."""
    for name, other in stage.parameters_type.instead_of.items():
        if values.get(name) is not None and values.get(other) is not None:
            raise InvalidRequest(
                f"given, and {name} as well: a job sets one of the two", field=f"stages.{stage.name}.{other}"
            )


def _of_parameters(error: ValidationError, stage: str, fields: Mapping[tuple[str, str], str]) -> InvalidRequest:
    """Return the error of a stage's parameters with its field as the client wrote it: at the request's top, or below.

    ``fields``: (stage, parameter) → the field at the request's top that sets it.
    """
    refused = refuse(error, "stages", stage)
    parameter, *within = (refused.field or "").split(".")[2:] or [""]
    top = fields.get((stage, parameter))
    if top is None:
        return refused
    if error.errors()[0]["type"] == "extra_forbidden" and not within:
        return InvalidRequest(f"stage {stage}, which makes this pipeline's text, does not take it", field=top)
    return InvalidRequest(refused.message, field=top if parameter == "stop" else ".".join((top, *within)))


def _sampling(request: JobRequest) -> list[tuple[str, str, Any]]:
    """Return (field, the stage's name for it, value) of each sampling parameter at the top of the request."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    sampling = [
        ("temperature", "temperature", request.temperature),
        ("top_p", "top_p", request.top_p),
        ("presence_penalty", "presence_penalty", request.presence_penalty),
        ("frequency_penalty", "frequency_penalty", request.frequency_penalty),
        ("max_tokens", "max_tokens", request.max_tokens),
        ("max_completion_tokens", "max_tokens", request.max_completion_tokens),
        ("stop", "stop", stop),
        ("response_format", "response_format", request.response_format),
        ("logprobs", "logprobs", request.logprobs),
        ("top_logprobs", "top_logprobs", request.top_logprobs),
    ]
    return [(field, name, value) for field, name, value in sampling if value is not None]
