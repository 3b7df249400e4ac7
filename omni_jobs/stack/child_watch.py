"""``ChildWatch``: finds the children of the embedded stack that serve no longer although their processes run."""

import time
from collections.abc import Callable, Sequence

from omni_jobs.stack.child import API, VALKEY, Child, ChildState

CHECK_S = 10.0
PATIENCE = 3  # times the limit, for a worker, which watches itself and tells more, and for the rescuer's long rounds


class ChildWatch:
    """Checks children from time to time. One that was stopped, or waits for ever, fails one check after another."""

    def __init__(self, children: Sequence[Child], still_serves: Callable[[Child], bool], limit_s: float) -> None:
        """``still_serves`` tells of a child that was ready whether it is. ``limit_s``: how long it may not be.

        Workers and the rescuer may for three times as long.
        """
        self.check_s = min(CHECK_S, limit_s / 3)  # the pause between two checks
        self._children = children
        self._still_serves = still_serves
        self._limit_s = limit_s
        self._failed_s: dict[int, float] = {}  # by process id
        self._checked_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True once the pause since the last check has passed."""
        return time.monotonic() >= self._checked_at + self.check_s

    def hanging(self) -> list[tuple[Child, float]]:
        """Check all children that were ready; return those that hang, and for how many seconds.

        It blocks for some seconds if one does not answer. A long time since the last check does not count whole,
        because then this process was stopped itself, maybe with all others.
        """
        now = time.monotonic()
        passed_s = min(now - self._checked_at, 2 * self.check_s)
        self._checked_at = now
        found = []
        failed_s: dict[int, float] = {}
        for child in self._children:
            if child.state is not ChildState.READY or child.pid is None or self._still_serves(child):
                continue
            failed_s[child.pid] = self._failed_s.get(child.pid, 0.0) + passed_s
            if failed_s[child.pid] >= self._limit_s * (1 if child.name in (VALKEY, API) else PATIENCE):
                found.append((child, failed_s[child.pid]))
        self._failed_s = failed_s
        return found
