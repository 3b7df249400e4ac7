"""What an admitted request's messages hold: media and pictures with their places, and the words asked for last."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_jobs.media.formats import Kind


def parts_of(request: Mapping[str, Any], *kinds: Kind) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the media of an admitted request's messages, or those of some kinds: its place in the request, its part.

    A part has the medium's number among the request's media as ``media``.
    """
    for position, message in enumerate(request.get("messages", ())):
        for place, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            if part["type"] in kinds if kinds else "media" in part:
                yield f"messages.{position}.content.{place}", part


def picture_parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield (field in the request, number among the media) of each picture of an admitted request's messages."""
    for field, part in parts_of({"messages": messages}, "image"):
        yield f"{field}.image_url.url", part["media"]


def strings_of(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a value of JSON, keys among them, with its place; that of a key is its object's."""
    waiting = [(value, field)]
    while waiting:
        each, at = waiting.pop()
        if isinstance(each, str):
            yield each, at
        elif isinstance(each, Mapping):
            for name, member in each.items():
                yield name, at
                waiting.append((member, f"{at}.{name[:64]}" if at else name[:64]))
        elif isinstance(each, list | tuple):
            waiting += [(member, f"{at}.{number}") for number, member in enumerate(each)]


def offered_tools(request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tools that the model is told of: none where the request's ``tool_choice`` is none."""
    tools: Sequence[Mapping[str, Any]] = request.get("tools", ())
    return () if request.get("tool_choice") == "none" else tools


def last_user_text(request: Mapping[str, Any]) -> str:
    """Return the text of an admitted request's last user message, its parts on lines of their own; "" without one.

    It is what a job asks for in words, for models that read no chat.
    """
    for message in reversed(request.get("messages", ())):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part["type"] == "text")
    return ""
