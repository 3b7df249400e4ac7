"""``RunTimes``: how long a worker's stage runs took lately, from which waits are estimated."""

from collections import deque

_WINDOW_S = 60.0
_AT_LEAST = 16  # stage runs that count, however long ago they ended
_AT_MOST = 1024


class RunTimes:
    """The times from claim to end of the stage runs that a worker has ended within the last minute, or of the last 16.

    While all slots are taken, a worker that has so many slots ends ``slots / mean`` stage runs a second.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=_AT_MOST)

    def note(self, at: float, run_s: float) -> None:
        """Note that a stage run ended ``at`` this time, in seconds of any clock, ``run_s`` after its claim."""
        self._ended.append((at, run_s))
        while len(self._ended) > _AT_LEAST and self._ended[0][0] < at - _WINDOW_S:
            self._ended.popleft()

    def mean(self) -> float | None:
        """Return the mean of the noted times in seconds; None before the first."""
        if not self._ended:
            return None
        return sum(run_s for _, run_s in self._ended) / len(self._ended)
