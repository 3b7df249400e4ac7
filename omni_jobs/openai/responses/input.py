"""``messages_of``: the input of a response, as the messages of a chat completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omni_jobs.errors import InvalidRequest

_ROLES: Final = ("user", "assistant", "system", "developer")
_OURS: Final = ("input_audio", "video_url")  # parts that have the same form in a message
_SHOWN: Final = ("id", "status", "phase", "type")  # of an item as an answer shows it: they change nothing
_TEXTS: Final = ("input_text", "output_text", "text")


@dataclass(slots=True)
class InputMessages:
    """The messages of a chat completion, and where each stands in what was sent.

    places   by message and by call, such as ``messages.2`` and ``messages.2.tool_calls.0``: the field that names it,
             such as ``input.3``; of a text alone ``input`` or ``instructions``
    ignored  the names of what is left out
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def add(self, message: dict[str, Any], place: str) -> None:
        """Add a message that stands in this place."""
        self.places[f"messages.{len(self.messages)}"] = place
        self.messages.append(message)

    def call(self, call: dict[str, Any], place: str) -> None:
        """Add a call of a tool, to the assistant's message before it if there is one."""
        if not self.messages or self.messages[-1].get("role") != "assistant":
            self.add({"role": "assistant", "content": None}, place)
        calls = self.messages[-1].setdefault("tool_calls", [])
        self.places[f"messages.{len(self.messages) - 1}.tool_calls.{len(calls)}"] = place
        calls.append(call)


def messages_of(taken: Mapping[str, Any], earlier: Sequence[dict[str, Any]] = ()) -> InputMessages:
    """Return the messages of a response: its ``instructions``, the ``earlier`` ones, and its ``input``.

    Raises InvalidRequest naming the field.
    """
    made = InputMessages()
    if (instructions := taken.get("instructions")) is not None:
        if not isinstance(instructions, str):
            raise InvalidRequest("must be a text", field="instructions")
        made.add({"role": "system", "content": instructions}, "instructions")
    for message in earlier:
        made.add(dict(message), "previous_response_id")
    given = taken.get("input")
    if isinstance(given, str):
        made.add({"role": "user", "content": given}, "input")
    elif isinstance(given, list) and given:
        for number, item in enumerate(given):
            _add(made, item, f"input.{number}")
    else:
        raise InvalidRequest("is required" if given is None else "must be a text, or a list of items", field="input")
    if not made.messages:
        raise InvalidRequest("has no message", field="input")
    return made


def _add(made: InputMessages, item: Any, place: str) -> None:
    if not isinstance(item, Mapping):
        raise InvalidRequest("must be an object", field=place)
    match item.get("type", "message"):
        case "message":
            made.add(_message(made, item, place), place)
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            made.call({"id": item.get("call_id"), "type": "function", "function": function}, place)
        case "function_call_output":
            content = _content(made, item.get("output"), f"{place}.output")
            made.add({"role": "tool", "tool_call_id": item.get("call_id"), "content": content}, place)
        case "reasoning":
            made.ignored.append("input.reasoning")
        case _:
            raise InvalidRequest("must be message, function_call, function_call_output", field=f"{place}.type")


def _message(made: InputMessages, item: Mapping[str, Any], place: str) -> dict[str, Any]:
    for name, value in item.items():
        if name not in (*_SHOWN, "role", "content") and value is not None:
            raise InvalidRequest("unknown key", field=f"{place}.{name:.64}")
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"must be one of {', '.join(_ROLES)}", field=f"{place}.role")
    return {"role": role, "content": _content(made, item.get("content"), f"{place}.content")}


def _content(made: InputMessages, content: Any, place: str) -> Any:
    if isinstance(content, list) and content:
        return [_part(made, part, f"{place}.{number}") for number, part in enumerate(content)]
    if content is None or content == []:
        raise InvalidRequest("is required", field=place)
    return content


def _part(made: InputMessages, part: Any, place: str) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise InvalidRequest("must be an object", field=place)
    kind = part.get("type")
    if part.get("prompt_cache_breakpoint") is not None:
        made.ignored.append("input.content.prompt_cache_breakpoint")
    if kind in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise InvalidRequest("no files are kept here: send image_url", field=f"{place}.file_id")
        if part.get("detail") not in (None, "auto"):
            made.ignored.append("input.content.detail")
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    if kind in _OURS:
        return {name: value for name, value in part.items() if name != "prompt_cache_breakpoint"}
    if kind == "input_file":
        raise InvalidRequest("no files are kept here: send the text of it as input_text", field=f"{place}.type")
    raise InvalidRequest("must be input_text, input_image, input_audio or video_url", field=f"{place}.type")
