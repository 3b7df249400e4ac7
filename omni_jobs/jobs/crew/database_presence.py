"""``DatabasePresence``: since when the database has been there without a gap, as a rescuer has seen it."""


class DatabasePresence:
    """Since when the database has answered a rescuer, by the database's own clock.

    In a gap no worker could renew its lease. So a rescuer takes a worker for lost only if it did not renew for a whole
    lease since the last gap. A sleep of all processes and a clock that was set count as gaps.
    """

    def __init__(self, longest_pause_s: float) -> None:
        """``longest_pause_s``: a longer time between two answers is a gap."""
        self._longest_pause_s = longest_pause_s
        self._answered_at: float | None = None
        self._since = 0.0

    def note(self, now: float) -> float:
        """Note that the database answers at ``now``, in seconds of its clock; return since when it has done so.

        Before the first answer nothing is known, so the presence begins with that.
        """
        if self._answered_at is None or not 0 <= now - self._answered_at <= self._longest_pause_s:
            self._since = now
        self._answered_at = now
        return self._since
