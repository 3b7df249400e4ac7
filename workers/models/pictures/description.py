"""Descriptions: the one message of a job that a picture or a video is made of, and the negative prompts beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.prompt_tokenizer import Messages


def check_one_message(request: Mapping[str, Any], does: str) -> None:
    """Raise InvalidRequest for more than one message of the user; ``does`` says what the model does with that one."""
    for number, message in enumerate(request["messages"]):
        if number or message["role"] != "user":
            raise InvalidRequest(f"this model {does}: a single message of the user", field=f"messages.{number}")


def description_of(messages: Messages) -> str:
    """Return the text of the first message, its parts joined."""
    content = messages[0]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def message_of(text: str, pictures: int = 0) -> list[dict[str, Any]]:
    """Return a request's messages: one of this text, which may be empty, behind this number of pictures."""
    parts: list[dict[str, Any]] = [{"type": "image", "media": number} for number in range(pictures)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def negative_prompts(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (text, field) of each negative prompt that the request gives."""
    return [
        (values["negative_prompt"], f"stages.{stage}.negative_prompt")
        for stage, values in request.get("parameters", {}).items()
        if isinstance(values.get("negative_prompt"), str)
    ]


def check_negative_prompts(
    request: Mapping[str, Any], count: Callable[[Messages], int], most: int, *, pictures: int = 0, beside: str = ""
) -> None:
    """Raise InvalidRequest, naming the field, for a negative prompt that has more than ``most`` tokens.

    ``count`` counts the tokens of messages, here of a negative prompt with this number of pictures. ``beside`` tells
    of tokens that are not the text's. Raise InvalidRequest with the field where ``count`` does, too.
    """
    for text, field in negative_prompts(request):
        try:
            tokens = count(message_of(text, pictures))
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=field) from None
        if tokens > most:
            raise InvalidRequest(f"it has {tokens} tokens{beside}; the model takes {most}", field=field)
