"""``parts_of``: the media in a request's messages, with their places."""

from collections.abc import Iterator, Mapping
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
