"""``CachedValue``: caches a value that many requests read and that takes long to compute."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_CHEAP_S = 0.05
_KEPT_PER_COST = 20.0


class CachedValue(Generic[T]):
    """Caches a value: the longer it takes to compute, the longer it is kept. Safe for threads.

    A value that takes less than 50 ms is computed at each call. Any other is kept for 20 times as long as it took.
    """

    def __init__(self, compute: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        """``compute`` makes the value, on the thread that calls ``get``. ``clock`` returns seconds."""
        self._compute = compute
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: tuple[T, float] | None = None  # with the time until which it is kept

    def get(self) -> T:
        """Return the cached value, or compute it. Raises what ``compute`` raises. Other threads wait meanwhile."""
        with self._lock:
            if self._cached is not None and self._clock() < self._cached[1]:
                return self._cached[0]
            began = self._clock()
            value = self._compute()
            took = self._clock() - began
            self._cached = (value, began if took <= _CHEAP_S else began + _KEPT_PER_COST * took)
            return value
