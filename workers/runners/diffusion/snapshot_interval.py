"""``SnapshotInterval``: how often the engine takes a snapshot of a row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotInterval:
    """A snapshot is due ``every_s`` seconds (0: never) or ``every_steps`` steps (None: never), what comes first."""

    every_s: float
    every_steps: int | None = None

    def is_due(self, seconds: float, steps: int) -> bool:
        """Return whether to save a row whose last snapshot, or begin, is ``seconds`` and ``steps`` ago."""
        by_time = self.every_s > 0 and seconds >= self.every_s
        return by_time or (self.every_steps is not None and steps >= self.every_steps)
