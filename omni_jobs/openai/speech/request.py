"""``SpeechRequest``: the body of a speech, as the job that it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked import one_of, pipeline_of, voice_of, with_parameters
from omni_jobs.openai.speech.parameters import SPEECH
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import JobRequest, Submission, request_digest
from omni_jobs.tenants.caller import Caller

SPEECH_NAMES: Final[Mapping[str, str]] = {
    "messages*": "input",
    "audio.voice": "voice",
    "audio.format": "response_format",
    "modalities*": "model",
    "stages.*.speed": "speed",
    "stages.*.instructions": "instructions",
}
"""What a client of speech calls the fields of the job's request."""

_STREAM_FORMATS = ("audio", "sse")
_DEFAULT_FORMAT = "mp3"
_AS_TRAINED = 1.0  # a speed


@dataclass(frozen=True, slots=True)
class WantedSpeech:
    """How a speech is to be answered.

    stage      the stage that makes the sound
    as_events  whether the sound comes in events
    ignored    the names of what is ignored
    """

    stage: str
    as_events: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A speech that is asked for, correct in form."""

    request: JobRequest
    answer: WantedSpeech

    @classmethod
    def of(cls, body: Mapping[str, Any], pipelines: Pipelines) -> "SpeechRequest":
        """Return the request that a JSON object is.

        Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
        """
        taken, ignored = SPEECH.sort(body)
        pipeline = pipeline_of(taken, pipelines, takes="text", makes="audio")
        as_events = one_of(taken, "stream_format", _STREAM_FORMATS) == "sse"
        if not isinstance(taken.get("input"), str):
            raise InvalidRequest("is required" if "input" not in taken else "must be a string", field="input")
        audio = {"voice": voice_of(taken.get("voice")), "format": taken.get("response_format", _DEFAULT_FORMAT)}
        asked = {
            "model": pipeline.name,
            "messages": [{"role": "user", "content": taken["input"]}],
            "modalities": ["audio"],
            "audio": audio,
            "seed": taken.get("seed"),
            "stages": _stages(taken, pipeline),
        }
        answer = WantedSpeech(pipeline.outputs["audio"].stage, as_events, tuple(ignored))
        return cls(JobRequest.parse(asked), answer)

    def submission(self, body: Mapping[str, Any], size: int, caller: Caller, key: str | None) -> Submission:
        """Return the submission of the job. ``body``, of ``size`` bytes, is what was sent, with ``key``."""
        sent = {name: value for name, value in body.items() if name != "stream_format"}
        return Submission(self.request, request_digest(sent), size, caller, key)


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
