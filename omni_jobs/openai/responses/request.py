"""``asked_response``: the body of a response, as the chat completion that makes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.openai.asked import flag
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.chat.request import asked_chat
from omni_jobs.openai.client_names import NameOf, in_client_names
from omni_jobs.openai.responses.input import messages_of
from omni_jobs.openai.responses.parameters import RESPONSES
from omni_jobs.pipelines.loader import Pipelines

KEPT: Final = "response"
"""The key of ``Submission.kept`` by which a job is known as a response."""

_SAME = (
    "model", "temperature", "top_p", "metadata", "service_tier", "modalities", "audio", "seed", "stages", "top_k",
    "min_p", "repetition_penalty", "min_tokens", "ignore_eos",
)  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_OF_TOOL = ("name", "description", "parameters", "strict")
_UNSAID_OF_TOOL = ("allowed_callers", "async", "defer_loading", "output_schema")
_MESSAGE = re.compile(r"(messages\.\d+)(?:\.((tool_calls\.\d+)?.*))?")
_WITHIN_MESSAGE = (
    (re.compile(r"tool_calls\.\d+\.function\."), ""),
    (re.compile(r"tool_calls\.\d+\.id"), "call_id"),
    (re.compile(r"tool_call_id"), "call_id"),
    (re.compile(r"(content\.\d+\.image_url)\.url"), r"\1"),
)
_ELSEWHERE = (
    (re.compile(r"messages"), "input"),
    (re.compile(r"max_(completion_)?tokens"), "max_output_tokens"),
    (re.compile(r"response_format\.json_schema"), "text.format"),
    (re.compile(r"response_format"), "text.format"),
    (re.compile(r"(tools\.\d+|tool_choice)\.function"), r"\1"),
    (re.compile(r"logprobs"), "include"),
)


@dataclass(frozen=True, slots=True)
class WantedResponse:
    """How a response is to be answered."""

    stream: bool
    background: bool


def asked_response(
    body: Mapping[str, Any], pipelines: Pipelines, earlier: Sequence[dict[str, Any]] = ()
) -> AskedJobs[WantedResponse]:
    """Return the job that a JSON object asks for, in which Uploads may stand for base64.

    ``earlier``: the messages of the response that it follows. Raises InvalidRequest naming the field, NotFound for
    an unknown model, and PluginBroken.
    """
    taken, ignored = RESPONSES.sort(body)
    stream, background = flag(taken, "stream"), flag(taken, "background")
    _check_stream_options(taken, stream)
    messages = messages_of(taken, earlier)
    ignored += messages.ignored
    asked = {name: taken[name] for name in _SAME if name in taken} | {"messages": messages.messages}
    asked |= _text(taken, ignored) | _tools(taken) | _logprobs(taken, ignored)
    if "max_output_tokens" in taken:
        asked["max_completion_tokens"] = taken["max_output_tokens"]
    modalities = taken.get("modalities")
    if isinstance(modalities, list) and "text" not in modalities:
        raise InvalidRequest("must have text", field="modalities")
    name_of = names_at(messages.places)
    with in_client_names(name_of):
        chat = asked_chat(asked, pipelines)
    kept: dict[str, Any] = {"stage": chat.answer.text_stage}
    kept |= {"background": True} if background else {}
    kept |= {"instructions": True} if "instructions" in taken else {}
    kept |= {name: taken[name] for name in ("previous_response_id",) if name in taken}
    ignored += [name_of(name).replace("messages.", "input.") for name in chat.ignored]
    answer = WantedResponse(stream, background)
    return AskedJobs(chat.requests, answer, chat.aside, ignored, name_of, {KEPT: kept}, goes_on=background)


def names_at(places: Mapping[str, str]) -> NameOf:
    """Return the client's names for the fields of its chat completion. ``places``: as ``InputMessages`` has them."""

    def name_of(field: str) -> str:
        found = _MESSAGE.fullmatch(field)
        if found is None or found[1] not in places:
            return _replaced(field, _ELSEWHERE)
        message, within, call = found.groups()
        place = places.get(f"{message}.{call}", places[message])
        within = _replaced(within or "", _WITHIN_MESSAGE)
        return f"{place}.{within}" if within and place.startswith("input.") else place

    return name_of


def kept_of(request: Mapping[str, Any], response_id: str) -> Mapping[str, Any]:
    """Return what an admitted request keeps of the response that was asked for.

    Raises NotFound for that of a job which was not submitted as a response.
    """
    kept: Mapping[str, Any] | None = request.get("kept", {}).get(KEPT)
    if kept is None:
        raise no_response(response_id)
    return kept


def no_response(response_id: str) -> NotFound:
    """Return the error for the id of no response."""
    return NotFound(f"there is no response {response_id!r:.80}", field="response_id")


def _replaced(field: str, rules: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, name in rules:
        if (found := pattern.match(field)) is not None:
            return found.expand(name) + field[found.end() :]
    return field


def _check_stream_options(taken: Mapping[str, Any], stream: bool) -> None:
    options = taken.get("stream_options")
    if options is None:
        return
    if not stream:
        raise InvalidRequest("given, and stream is not true", field="stream_options")
    if not isinstance(options, Mapping):
        raise InvalidRequest("must be an object", field="stream_options")
    for name in options:
        if name != "include_obfuscation":
            raise InvalidRequest("unknown key", field=f"stream_options.{name:.64}")


def _text(taken: Mapping[str, Any], ignored: list[str]) -> dict[str, Any]:
    """Return the form of the text."""
    text = taken.get("text", {})
    if not isinstance(text, Mapping):
        raise InvalidRequest("must be an object", field="text")
    for name, value in text.items():
        if name == "verbosity" and value is not None:
            ignored.append("text.verbosity")
        elif name not in ("format", "verbosity"):
            raise InvalidRequest("unknown key", field=f"text.{name:.64}")
    format = text.get("format")
    if format is None:
        return {}
    if not isinstance(format, Mapping):
        raise InvalidRequest("must be an object", field="text.format")
    if format.get("type") == "text" and set(format) == {"type"}:
        return {}
    if format.get("type") != "json_schema":
        return {"response_format": dict(format)}
    schema = {name: value for name, value in format.items() if name != "type" and value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tools(taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tools, whose functions have an object of their own in a chat completion, and what goes with them.

    Clients say of no tools, too, that a choice of them is free, and that several may be called.
    """
    made: dict[str, Any] = {}
    if "tools" in taken:
        tools = taken["tools"]
        if not isinstance(tools, list):
            raise InvalidRequest("must be a list", field="tools")
        if tools:
            made["tools"] = [_tool(tool, f"tools.{number}") for number, tool in enumerate(tools)]
    if "tool_choice" in taken and (made or taken["tool_choice"] not in ("auto", "none")):
        choice = taken["tool_choice"]
        if isinstance(choice, Mapping):
            if choice.get("type") != "function":
                raise InvalidRequest("must be function", field="tool_choice.type")
            rest = {name: value for name, value in choice.items() if name != "type"}
            choice = {"type": "function", "function": rest}
        made["tool_choice"] = choice
    if "tools" in made and "parallel_tool_calls" in taken:
        made["parallel_tool_calls"] = taken["parallel_tool_calls"]
    return made


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest("must be an object", field=place)
    if tool.get("type") != "function":
        raise InvalidRequest("must be function: there are no built-in tools", field=f"{place}.type")
    for name, value in tool.items():
        if name not in (*_OF_TOOL, "type") and (name not in _UNSAID_OF_TOOL or value is not None):
            raise InvalidRequest("unknown key", field=f"{place}.{name:.64}")
    return {"type": "function", "function": {name: tool[name] for name in _OF_TOOL if name in tool}}


def _logprobs(taken: Mapping[str, Any], ignored: list[str]) -> dict[str, Any]:
    include = taken.get("include", [])
    if not isinstance(include, list):
        raise InvalidRequest("must be a list", field="include")
    if any(each != _LOGPROBS for each in include):
        ignored.append("include")
    top = taken.get("top_logprobs")
    if not top and _LOGPROBS not in include:
        return {}
    return {"logprobs": True} | ({} if top is None else {"top_logprobs": top})
