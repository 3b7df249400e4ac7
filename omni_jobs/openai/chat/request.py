"""``asked_chat``: the body of a chat completion, as the jobs that it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked import flag, pipeline_of, voice_of, with_parameters
from omni_jobs.openai.asked_jobs import AskedJobs, seeds_of
from omni_jobs.openai.chat.parameters import CHAT_COMPLETIONS
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import JobRequest

MOST_CHOICES: Final = 16
MOST_STOPS: Final = 4
_SAME = frozenset(
    {
        "model", "messages", "max_completion_tokens", "max_tokens", "temperature", "top_p", "presence_penalty",
        "frequency_penalty", "stop", "response_format", "logprobs", "top_logprobs", "tools", "tool_choice",
        "parallel_tool_calls", "metadata", "modalities",
    }
)  # fmt: skip
_OF_TEXT_STAGE = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
_PRIORITIES = {
    "auto": "normal", "default": "normal", "scale": "normal", "flex": "low", "priority": "high", "fast": "high"
}  # fmt: skip
_FORMATS = {"pcm16": "pcm"}
_MODALITIES = ("text", "audio")
_UNSAID = ("refusal", "annotations", "audio", "function_call", "name")  # of a message: nothing, where they are null
_NO_WISHES: Mapping[str, Any] = {"response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0}
_STREAM_OPTIONS = ("include_usage", "include_obfuscation")
_ASIDE = ("stream", "stream_options")


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """How a chat completion is to be answered.

    text_stage     the stage that makes the text
    stream         whether the text is streamed
    include_usage  whether a stream ends with the usage
    """

    text_stage: str
    stream: bool
    include_usage: bool


def asked_chat(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[WantedAnswer]:
    """Return the jobs that a JSON object asks for, in which Uploads may stand for base64: one for each choice.

    Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
    """
    taken, ignored = CHAT_COMPLETIONS.sort(body)
    pipeline = pipeline_of(taken, pipelines, takes="text", makes="text")
    stream = flag(taken, "stream")
    options = taken.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise InvalidRequest("must be an object", field="stream_options")
    if options and not stream:
        raise InvalidRequest("given, and stream is not true", field="stream_options")
    for name in options:
        if name not in _STREAM_OPTIONS:
            raise InvalidRequest("unknown key", field=f"stream_options.{name:.64}")
    include_usage = flag(options, "include_usage", "stream_options.")
    asked = {name: value for name, value in taken.items() if name in _SAME}
    asked |= _outputs(taken) | _priority(taken) | _stages(taken, pipeline)
    _drop_unasked(asked, pipeline.stage(pipeline.outputs["text"].stage))
    _check_stop(taken)
    asked["messages"] = _messages(taken.get("messages"), ignored)
    choices = [asked | ({} if seed is None else {"seed": seed}) for seed in seeds_of(taken, MOST_CHOICES)]
    answer = WantedAnswer(pipeline.outputs["text"].stage, stream, include_usage)
    return AskedJobs([JobRequest.parse(choice) for choice in choices], answer, _ASIDE, ignored)


def _outputs(taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the audio options of a job, and its modalities."""
    modalities = taken.get("modalities", ["text"])
    for number, modality in enumerate(modalities if isinstance(modalities, list) else ()):
        if modality not in _MODALITIES:
            raise InvalidRequest(f"must be one of {', '.join(_MODALITIES)}", field=f"modalities.{number}")
    made: dict[str, Any] = {"modalities": modalities}
    audio = taken.get("audio")
    if isinstance(audio, Mapping):
        voice, format = audio.get("voice"), audio.get("format")
        made["audio"] = dict(audio) | {
            "voice": voice_of(voice),
            "format": _FORMATS.get(format, format) if isinstance(format, str) else format,
        }
    elif audio is not None:
        made["audio"] = audio
    return made


def _priority(taken: Mapping[str, Any]) -> dict[str, Any]:
    tier = taken.get("service_tier")
    if tier is None:
        return {}
    if not isinstance(tier, str) or tier not in _PRIORITIES:
        raise InvalidRequest(f"must be one of {', '.join(_PRIORITIES)}", field="service_tier")
    return {"priority": _PRIORITIES[tier]}


def _stages(taken: Mapping[str, Any], pipeline: Pipeline) -> dict[str, Any]:
    """Return the parameters by stage, vLLM's names among them."""
    stages = taken.get("stages")
    named = {name: taken[name] for name in _OF_TEXT_STAGE if name in taken}
    if named.get("top_k") == -1:
        named["top_k"] = 0
    stages = with_parameters(stages, pipeline.outputs["text"].stage, named)
    return {} if stages is None else {"stages": stages}


def _drop_unasked(asked: dict[str, Any], stage: StageConfig) -> None:
    """Drop what asks for nothing, because clients send it to every server: a wish of none, or of no tools.

    ``stage`` makes the text. What it has as a parameter stays, because the pipeline's own default may be another.
    """
    for name, none in _NO_WISHES.items():
        if name in asked and asked[name] == none and not stage.has_parameter(name):
            del asked[name]
    if asked.get("tools") == []:
        del asked["tools"]
    if "tools" not in asked:
        if asked.get("tool_choice") in ("none", "auto"):
            del asked["tool_choice"]
        if isinstance(asked.get("parallel_tool_calls"), bool):
            del asked["parallel_tool_calls"]


def _check_stop(taken: Mapping[str, Any]) -> None:
    stop = taken.get("stop")
    if isinstance(stop, list) and len(stop) > MOST_STOPS:
        raise InvalidRequest(f"takes {MOST_STOPS} items at most", field="stop")


def _messages(messages: Any, ignored: list[str]) -> Any:
    """Return the messages as a job has them. What is left out of them is added to ``ignored``."""
    if messages is None:
        raise InvalidRequest("is required", field="messages")
    if not isinstance(messages, list):
        return messages
    return [_message(message, f"messages.{number}", ignored) for number, message in enumerate(messages)]


def _message(message: Any, field: str, ignored: list[str]) -> Any:
    if not isinstance(message, Mapping):
        return message
    made = {name: value for name, value in message.items() if value is not None or name not in _UNSAID}
    if "audio" in made:
        raise InvalidRequest("not taken: send its transcript as content", field=f"{field}.audio")
    if made.get("annotations") == []:
        del made["annotations"]
    if made.get("role") == "developer":
        made["role"] = "system"
    if "name" in made:
        del made["name"]
        ignored.append("messages.name")
    if isinstance(made.get("content"), list):
        made["content"] = [_part(part, ignored) for part in made["content"]]
    return made


def _part(part: Any, ignored: list[str]) -> Any:
    if not isinstance(part, Mapping):
        return part
    made = dict(part)
    if made.pop("prompt_cache_breakpoint", None) is not None:
        ignored.append("messages.content.prompt_cache_breakpoint")
    picture = made.get("image_url")
    if isinstance(picture, Mapping) and picture.get("detail") in ("low", "high", "original"):
        made["image_url"] = {name: value for name, value in picture.items() if name != "detail"}
        ignored.append("messages.content.image_url.detail")
    return made
