"""``Slots``: how many slots of a worker are free, and for which jobs."""


class Slots:
    """Counts a worker's slots. Only stage runs of high jobs may take the ``kept`` ones, and they take these first.

    Counted on the event loop; any thread may read.
    """

    def __init__(self, number: int, kept: int = 0) -> None:
        """All are free. Of a worker with few slots one at least is not kept, because other jobs would never run."""
        self.number = number
        self.kept = min(kept, number - 1)
        self.taken = 0
        self._taken_by_high = 0
        self._asked = 0  # how many stage runs of any jobs the claim under way asks for
        self._asked_of_high = 0  # and how many further ones of high jobs

    @property
    def for_any(self) -> int:
        """How many are free for stage runs of any jobs."""
        by_others = self.taken - self._taken_by_high
        return min(self.number - self.kept - by_others - self._asked, self.for_high)

    @property
    def for_high(self) -> int:
        """How many are free for stage runs of high jobs: all that are free."""
        return self.number - self.taken - self._asked - self._asked_of_high

    def ask(self, at_most: int, of_high: int) -> None:
        """Set free slots aside for a claim: ``at_most`` for stage runs of any jobs, ``of_high`` for those of high jobs.

        Call it with 0 and 0 when the claim is over.
        """
        self._asked, self._asked_of_high = at_most, of_high

    def take(self, is_high: bool) -> None:
        """Count a stage run that was claimed."""
        self.taken += 1
        self._taken_by_high += is_high

    def free(self, is_high: bool) -> None:
        """Count a stage run that ended."""
        self.taken -= 1
        self._taken_by_high -= is_high
