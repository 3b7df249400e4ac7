"""``BeatFile``: a file that a process touches while it is well. Its age tells a health check of one that hangs."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

logger = logging.getLogger(__name__)


class BeatFile:
    """The file of the setting ``beat_file``; without a path it does nothing.

    The file that a process before this one has left is removed, because it would tell of that one.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_failing = False
        if path is not None:
            self._attempt(partial(path.unlink, missing_ok=True))

    @property
    def is_kept(self) -> bool:
        """Whether there is a path."""
        return self._path is not None

    def beat(self) -> None:
        """Touch the file. Log why that fails, unless it failed before, too."""
        if self._path is not None:
            self._attempt(self._path.touch)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            if not self._is_failing:
                logger.error("no health check sees this process: %s: %s", self._path, error.strerror or error)
            self._is_failing = True
        else:
            self._is_failing = False


def seconds_since_beat(path: Path) -> float | None:
    """Return how long ago a process touched its file; None: it has not yet."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return None
