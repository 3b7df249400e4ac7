"""``page_of``: the input of a response as a list of items, a function of the request that its job keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from omni_jobs.errors import NotFound
from omni_jobs.openai.responses.answer import response_id_of, text_part
from omni_jobs.openai.responses.request import kept_of


class InputItems(BaseModel):
    """A page of the input of a response. The ids are null where it is empty."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(
    job_id: str, request: Mapping[str, Any], *, limit: int, newest_first: bool, after: str | None
) -> InputItems:
    """Return ``limit`` items of the input of a job with this admitted request, those that follow the item ``after``.

    Raises NotFound for a job that was not submitted as a response, and for an item that there is not.
    """
    items = list(_items(job_id, request))
    if newest_first:
        items.reverse()
    if after is not None:
        place = next((number for number, item in enumerate(items, 1) if item["id"] == after), None)
        if place is None:
            raise NotFound(f"there is no item {after!r:.80}", field="after")
        items = items[place:]
    page = items[:limit]
    ids = [item["id"] for item in page] or [None]
    return InputItems(data=page, first_id=ids[0], last_id=ids[-1], has_more=len(items) > limit)


def _items(job_id: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of all messages but the instructions, in their order."""
    kept = kept_of(request, response_id_of(job_id))
    messages: Sequence[Mapping[str, Any]] = request["messages"][1 if kept.get("instructions") else 0 :]
    suffix = job_id.removeprefix("job-")
    for number, message in enumerate(messages):
        its = {"id": f"msg_{suffix}_in{number}", "status": "completed"}
        if message["role"] == "tool":
            output = _parts(message["content"])
            yield its | {"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}
            continue
        calls = message.get("tool_calls", ())
        if message["content"] or not calls:
            yield its | {"type": "message", "role": message["role"], "content": _content(message)}
        for place, call in enumerate(calls):
            function = call["function"]
            yield its | {
                "id": f"fc_{suffix}_in{number}_{place}",
                "type": "function_call",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
            }


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if message["role"] != "assistant":
        return _parts(message["content"])
    parts = _parts(message["content"])
    return [text_part(part["text"]) if part["type"] == "input_text" else part for part in parts]


def _parts(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of a message. Media are named, and not sent back."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image":
            return {"type": "input_image", "detail": "auto", "image_url": None, "file_id": None}
        case kind:
            return {"type": f"input_{kind}"}
