"""``StepBudget``: how much one step of a diffusion engine may take; it shrinks when memory lacks, and recovers."""

_STEPS_UNTIL_GROWTH = 64  # after a lack of memory; so that trying costs little when there is no more room


class MemoryLimit:
    """How many units may be computed at once. It shrinks when memory lacks, and recovers. Not for several threads."""

    def __init__(self, max_units: int) -> None:
        """Start with ``max_units``, which ``units`` never exceeds."""
        self.max_units = max_units
        self.units = max_units
        self._steps = 0  # since ``units`` changed

    def shrink(self, failed: int) -> None:
        """Take half of the units for which memory lacked, because what fits one by one did not fit together."""
        self.units = max(1, min(self.units, failed // 2))
        self._steps = 0

    def count_step(self) -> None:
        """Note a step for which memory sufficed: after 64 of them the limit grows by a quarter."""
        self._steps += 1
        if self.units < self.max_units and self._steps >= _STEPS_UNTIL_GROWTH:
            self.units = min(self.max_units, self.units + max(1, self.units // 4))
            self._steps = 0


class StepBudget(MemoryLimit):
    """The rows of a step have at most ``units`` together, and there are at most ``max_rows``.

    A row that takes more units runs, and runs alone.
    """

    def __init__(self, max_units: int, max_rows: int) -> None:
        """Start with ``max_units``, which ``units`` never exceeds."""
        super().__init__(max_units)
        self.max_rows = max_rows
