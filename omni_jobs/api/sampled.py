"""A value that may take long to find, and is asked for often: found now and then, told in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Sampled"]

T = TypeVar("T")

_MOMENT_S = 0.05
_PAUSE_PER_LOOK = 20.0


class Sampled(Generic[T]):
    """Safe for threads. What is found in a moment is found each time it is asked for.

    What takes longer is kept for twenty times as long as it took.
    """

    def __init__(self, find: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._find = find
        self._clock = clock
        self._looking = threading.Lock()
        self._found: tuple[T, float] | None = None  # with when to look again

    def get(self) -> T:
        """The value, or the last one; raises what ``find`` raises. Who comes while it is being found waits."""
        with self._looking:
            if self._found is not None and self._clock() < self._found[1]:
                return self._found[0]
            began = self._clock()
            value = self._find()
            took = self._clock() - began
            self._found = (value, began if took <= _MOMENT_S else began + _PAUSE_PER_LOOK * took)
            return value
