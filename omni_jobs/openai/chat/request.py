"""``ChatRequest``: the body of a chat completion, as the jobs that it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked import voice_of, with_parameters
from omni_jobs.openai.chat.parameters import CHAT_COMPLETIONS
from omni_jobs.openai.several_jobs import seeds_of, submissions_of
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import JobRequest, Submission
from omni_jobs.tenants.caller import Caller

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


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """How a chat completion is to be answered. It holds nothing of the request's media, because an answer may be late.

    text_stage     the stage that makes the text
    stream         whether the text is streamed
    include_usage  whether a stream ends with the usage
    ignored        the names of what is ignored
    """

    text_stage: str
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion that is asked for, correct in form: the requests of its jobs, one for each choice."""

    requests: tuple[JobRequest, ...]
    answer: WantedAnswer

    @classmethod
    def of(cls, body: Mapping[str, Any], pipelines: Pipelines) -> "ChatRequest":
        """Return the request that a JSON object is, in which Uploads may stand for base64.

        Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
        """
        taken, ignored = CHAT_COMPLETIONS.sort(body)
        pipeline = _pipeline(taken, pipelines)
        stream = _flag(taken, "stream")
        options = taken.get("stream_options", {})
        if not isinstance(options, Mapping):
            raise InvalidRequest("must be an object", field="stream_options")
        if options and not stream:
            raise InvalidRequest("given, and stream is not true", field="stream_options")
        for name in options:
            if name not in _STREAM_OPTIONS:
                raise InvalidRequest("unknown key", field=f"stream_options.{name:.64}")
        include_usage = _flag(options, "include_usage", "stream_options.")
        asked = {name: value for name, value in taken.items() if name in _SAME}
        asked |= _outputs(taken) | _priority(taken) | _stages(taken, pipeline)
        _drop_unasked(asked, pipeline.stage(pipeline.outputs["text"].stage))
        _check_stop(taken)
        asked["messages"] = _messages(taken.get("messages"), ignored)
        choices = [asked | ({} if seed is None else {"seed": seed}) for seed in seeds_of(taken, MOST_CHOICES)]
        requests = tuple(JobRequest.parse(choice) for choice in choices)
        text_stage = pipeline.outputs["text"].stage
        return cls(requests, WantedAnswer(text_stage, stream, include_usage, tuple(dict.fromkeys(ignored))))

    def submissions(self, body: Mapping[str, Any], size: int, caller: Caller, key: str | None) -> list[Submission]:
        """Return a submission for each choice. ``body``, of ``size`` bytes, is what was sent, with ``key``.

        How the answer is sent is no part of it: what broke off as a stream may be asked for whole, with the same key.
        """
        sent = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        return submissions_of(self.requests, sent, size, caller, key)


def _pipeline(taken: Mapping[str, Any], pipelines: Pipelines) -> Pipeline:
    name = taken.get("model")
    if not isinstance(name, str):
        raise InvalidRequest("is required" if name is None else "must be a string", field="model")
    pipeline = pipelines.named(name)
    if "text" not in pipeline.accepts or "text" not in pipeline.outputs:
        raise InvalidRequest(f"pipeline {pipeline.name} does not answer text with text", field="model")
    return pipeline


def _flag(given: Mapping[str, Any], name: str, prefix: str = "") -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest("must be true or false", field=f"{prefix}{name}")
    return value is True


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
