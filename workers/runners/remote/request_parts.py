"""What remote stages read of a job's request: its parts of a kind, with their places."""

from collections.abc import Iterator, Mapping
from typing import Any

from workers.runners.remote.media_type import MediaKind


def parts_of(request: Mapping[str, Any], *kinds: MediaKind) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of a request's messages that are of these kinds, with their places in the request."""
    for position, message in enumerate(request.get("messages", ())):
        for place, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            if part["type"] in kinds:
                yield f"messages.{position}.content.{place}", part
