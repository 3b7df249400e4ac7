"""``asked_speech``: the body of a speech, as the job that it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked import one_of, pipeline_of, text_in, voice_of, with_parameters
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.client_names import in_client_names, names_of
from omni_jobs.openai.speech.parameters import SPEECH
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import JobRequest

_NAME_OF = names_of(
    {
        "messages*": "input",
        "audio.voice": "voice",
        "audio.format": "response_format",
        "modalities*": "model",
        "stages.*.speed": "speed",
        "stages.*.instructions": "instructions",
    }
)
_STREAM_FORMATS = ("audio", "sse")
_DEFAULT_FORMAT = "mp3"
_AS_TRAINED = 1.0  # a speed


@dataclass(frozen=True, slots=True)
class WantedSpeech:
    """How a speech is to be answered.

    stage      the stage that makes the sound
    as_events  whether the sound comes in events
    """

    stage: str
    as_events: bool


def asked_speech(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[WantedSpeech]:
    """Return the job that a JSON object asks for.

    Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
    """
    taken, ignored = SPEECH.sort(body)
    pipeline = pipeline_of(taken, pipelines, takes="text", makes="audio")
    as_events = one_of(taken, "stream_format", _STREAM_FORMATS) == "sse"
    asked = {
        "model": pipeline.name,
        "messages": [{"role": "user", "content": text_in(taken, "input")}],
        "modalities": ["audio"],
        "audio": {"voice": voice_of(taken.get("voice")), "format": taken.get("response_format", _DEFAULT_FORMAT)},
        "seed": taken.get("seed"),
        "stages": _stages(taken, pipeline),
    }
    answer = WantedSpeech(pipeline.outputs["audio"].stage, as_events)
    with in_client_names(_NAME_OF):
        return AskedJobs([JobRequest.parse(asked)], answer, ("stream_format",), ignored, _NAME_OF)


def _stages(taken: Mapping[str, Any], pipeline: Pipeline) -> Any:
    """Return the parameters by stage, with the speed and the instructions where a stage has them."""
    stages = taken.get("stages")
    speed = taken.get("speed", _AS_TRAINED)
    if not isinstance(speed, int | float) or isinstance(speed, bool):
        raise InvalidRequest("must be a number", field="speed")
    if (stage := _stage_with("speed", pipeline)) is not None:
        stages = with_parameters(stages, stage.name, {"speed": float(speed)} if "speed" in taken else {})
    elif speed != _AS_TRAINED:
        raise InvalidRequest(f"pipeline {pipeline.name} speaks at its own speed alone: 1", field="speed")
    if "instructions" in taken:
        if (stage := _stage_with("instructions", pipeline)) is None:
            raise InvalidRequest(f"no stage of pipeline {pipeline.name} takes them", field="instructions")
        stages = with_parameters(stages, stage.name, {"instructions": taken["instructions"]})
    return stages


def _stage_with(parameter: str, pipeline: Pipeline) -> StageConfig | None:
    """Return the stage with this parameter that is nearest to the sound; None: no stage has it."""
    stages = reversed(pipeline.stages_for(["audio"]))
    return next((stage for stage in stages if stage.has_parameter(parameter)), None)
