"""``last_user_text``: what a job asks for in words, for models that read no chat."""

from collections.abc import Mapping
from typing import Any


def last_user_text(request: Mapping[str, Any]) -> str:
    """Return the text of an admitted request's last user message, its parts on lines of their own; "" without one."""
    for message in reversed(request.get("messages", ())):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part["type"] == "text")
    return ""
