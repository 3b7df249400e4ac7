"""Which hints are claimed next, so that a suspect runs alone.

A stage run that was lost with its worker too often is a suspect (``Claim.alone``): one
more lost worker quarantines it. It must run with nothing beside it, and nothing may be
claimed beside it either: whatever a worker holds when it dies counts as lost with it.
So a suspect's hint is a barrier: what is older runs to its end first, what is younger
is claimed after the suspect has ended. Everything keeps its turn, so nothing starves.

That a hint is a suspect's shows when it has been claimed. If it has company then, it is
handed back and set apart here: first in the line, and claimed by itself.
"""

from __future__ import annotations

from collections import deque

__all__ = ["WaitingHints"]

_Hint = tuple[int, int]


class WaitingHints:
    """Hints ``(stage run id, attempt)`` in hand and not claimed, oldest first."""

    def __init__(self) -> None:
        self._line: deque[_Hint] = deque()
        self._suspects: set[_Hint] = set()  # those of the line that are claimed by themselves

    def __len__(self) -> int:
        return len(self._line)

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    def add(self, hint: _Hint) -> None:
        """The last of the line."""
        self._line.append(hint)

    def set_apart(self, hint: _Hint) -> None:
        """A suspect's: the first of the line."""
        if hint not in self._suspects:
            self._suspects.add(hint)
            self._line.appendleft(hint)

    def take(self, at_most: int, *, idle: bool) -> list[_Hint]:
        """The next hints to claim together; a suspect's only when the worker is ``idle``, and by itself."""
        batch: list[_Hint] = []
        while self._line and len(batch) < at_most:
            hint = self._line[0]
            if hint in self._suspects:
                if batch or not idle:
                    break
                self._suspects.discard(self._line.popleft())
                return [hint]
            batch.append(self._line.popleft())
        return batch

    def clear(self) -> int:
        """Forget all; how many there were."""
        count = len(self._line)
        self._line.clear()
        self._suspects.clear()
        return count
