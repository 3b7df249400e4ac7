"""``picture_parts``: the parts of a request's messages that are pictures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def picture_parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield (field in the request, number among the media) of each picture of an admitted request's messages."""
    for position, message in enumerate(messages):
        content = message["content"]
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] == "image":
                yield f"messages.{position}.content.{place}.image_url.url", part["media"]
