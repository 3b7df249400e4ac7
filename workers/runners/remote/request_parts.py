"""What remote stages read of a job's request: its last text, and its media with their places."""

from collections.abc import Iterator, Mapping
from typing import Any

from workers.runners.remote.media_type import MediaKind


def parts_of(request: Mapping[str, Any], *kinds: MediaKind) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of a request's messages that are of these kinds, with their places in the request."""
    for position, message in enumerate(request.get("messages", ())):
        for place, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
            if part["type"] in kinds:
                yield f"messages.{position}.content.{place}", part


def last_user_text(request: Mapping[str, Any]) -> str:
    """Return the text of a request's last user message, its parts on lines of their own; empty if there is none."""
    for message in reversed(request.get("messages", ())):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part["type"] == "text")
    return ""
