"""``ToolCalls``: the calls of tools in a chat completion, or in the pieces of one."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workers.runners.remote.document import MOST_TEXT, Document, PathStep
from workers.runners.remote.failures import bad_answer

_MOST: Final = 128
_LONGEST: Final = 256  # characters of an id or a name


class ToolCalls:
    """Collects the calls of one answer, of at most 4 Mi characters."""

    def __init__(self) -> None:
        """Begin without a call."""
        self._calls: dict[int, dict[str, str]] = {}
        self._characters = 0

    def add(self, document: Document, *path: PathStep) -> None:
        """Add the calls at a path, or their next pieces, each with its ``index``. Raises ModelError for too much."""
        given = document.peek(*path)
        for place in range(len(given)) if isinstance(given, list) else ():
            index = document.peek(*path, place, "index")
            number = index if type(index) is int and index >= 0 else len(self._calls) if index is None else place
            call = self._calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
            if len(self._calls) > _MOST:
                raise bad_answer(f"more than {_MOST} calls of tools")
            call["id"] = call["id"] or (document.word(*path, place, "id") or "")[:_LONGEST]
            call["name"] = call["name"] or (document.word(*path, place, "function", "name") or "")[:_LONGEST]
            piece = document.text(*path, place, "function", "arguments") or ""
            self._characters += len(piece)
            if self._characters > MOST_TEXT:
                raise bad_answer(f"calls of tools with more text than {MOST_TEXT} characters")
            call["arguments"] += piece

    def collected(self) -> Sequence[Mapping[str, Any]]:
        """Return the calls as a job's result has them. Raises ModelError for one without a name."""
        if any(not call["name"] for call in self._calls.values()):
            raise bad_answer("a call of a tool without a name")
        return [
            {
                "id": call["id"] or f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"] or "{}"},
            }
            for _, call in sorted(self._calls.items())
        ]
