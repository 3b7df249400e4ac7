"""``WaitingHints``: a worker's line of hints, in an order that lets a suspect run alone.

A stage run that was lost with its worker too often is a suspect (``Claim.alone``): one more lost worker quarantines
it. It must run with nothing beside it, and nothing may be claimed beside it, because everything that a worker holds
when it dies counts as lost with it. So a suspect's hint is a barrier: older stage runs end first, younger hints are
claimed after the suspect has ended. Every hint keeps its turn, so none starves.

Only a claim shows that a hint is a suspect's. If other stage runs are in flight then, the executor hands the suspect
back and sets its next hint apart here: first in the line, and claimed by itself.
"""

from collections import deque

_Hint = tuple[int, int]


class WaitingHints:
    """The executor's hints ``(stage run id, attempt)`` that wait to be claimed, oldest first."""

    def __init__(self) -> None:
        self._line: deque[_Hint] = deque()
        self._suspects: set[_Hint] = set()  # hints of the line that are claimed by themselves

    @property
    def has_suspects(self) -> bool:
        """Whether a suspect's hint waits in the line."""
        return bool(self._suspects)

    def add(self, hint: _Hint) -> None:
        """Put a hint at the end of the line; only ``set_apart`` puts one at its front."""
        self._line.append(hint)

    def set_apart(self, hint: _Hint) -> None:
        """Put a suspect's hint at the front of the line, to be taken by itself, unless it is set apart already."""
        if hint not in self._suspects:
            self._suspects.add(hint)
            self._line.appendleft(hint)

    def take(self, at_most: int, *, idle: bool) -> list[_Hint]:
        """Take out and return the next hints to claim together, at most ``at_most``, none if none is due.

        A suspect's comes by itself, and only if the worker is ``idle``.
        """
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
        """Drop all hints; return how many there were."""
        count = len(self._line)
        self._line.clear()
        self._suspects.clear()
        return count
