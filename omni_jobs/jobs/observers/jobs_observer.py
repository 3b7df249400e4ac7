"""``JobsObserver``: what can be heard of the transitions that a process makes."""

from collections.abc import Sequence

from omni_jobs.jobs.values import Change


class JobsObserver:
    """Hears of transitions on the thread that made them, once they are committed. Each method returns at once."""

    def changed(self, changes: Sequence[Change]) -> None:
        """Jobs and stage runs went to these states in one transaction. Of new jobs the intake's observers hear."""
