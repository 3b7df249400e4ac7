"""``RunTimes``: how long a worker's stage runs took lately, from which waits are estimated."""

import time
from collections import deque
from collections.abc import Sequence

from omni_jobs.jobs import Claim, Outcome, Release, Report
from workers.execution.observers.ledger_observer import LedgerObserver

_WINDOW_S = 60.0
_AT_LEAST = 16  # stage runs that count, however long ago they ended
_AT_MOST = 1024


class RunTimes(LedgerObserver):
    """Mean run time over the last minute, or over the last 16 stage runs if fewer ended; from claim to recorded end.

    While all slots are taken, a worker that has so many slots ends ``slots / mean`` stage runs a second.
    """

    def __init__(self) -> None:
        self._claimed_at: dict[int, float] = {}
        self._ended: deque[tuple[float, float]] = deque(maxlen=_AT_MOST)

    def claimed(self, claims: Sequence[Claim]) -> None:
        self._claimed_at.update(dict.fromkeys((claim.stage_run_id for claim in claims), time.monotonic()))

    def ended(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> None:
        at = time.monotonic()
        for report in reports:
            claimed_at = self._claimed_at.pop(report.stage_run_id, None)
            if claimed_at is not None and not isinstance(report, Release):
                self.note(at, at - claimed_at)

    def note(self, at: float, run_s: float) -> None:
        """Note that a stage run ended ``at`` this time, in seconds of any clock, ``run_s`` after its claim."""
        self._ended.append((at, run_s))

    def mean(self, at: float) -> float | None:
        """Return the mean of the noted times at this time of their clock, in seconds; None before the first."""
        lately = sum(ended_at >= at - _WINDOW_S for ended_at, _ in self._ended)
        counted = [run_s for _, run_s in self._ended][-max(lately, _AT_LEAST) :]
        return sum(counted) / len(counted) if counted else None
