"""``picture_parts``: the parts of a request's messages that are pictures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_jobs.prompts.request_parts import parts_of


def picture_parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield (field in the request, number among the media) of each picture of an admitted request's messages."""
    for field, part in parts_of({"messages": messages}, "image"):
        yield f"{field}.image_url.url", part["media"]
