"""Threads' turns at the interpreter: shorter ones while something large is read or answered, which computes long.

A small submit passes between threads some dozens of times, and each time waits for its turn. Short turns cost
a twentieth of what the server can do, so they are for those times alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TURNS", "Turns", "short_turns"]

_SHORT_S = 0.0001


class Turns:
    """Of this process; safe for threads. ``shorten`` and ``restore`` come in pairs, any number of them at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shortened = 0
        self._usual_s = 0.0

    def shorten(self) -> None:
        with self._lock:
            if not self._shortened:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(_SHORT_S)
            self._shortened += 1

    def restore(self) -> None:
        with self._lock:
            self._shortened -= 1
            if not self._shortened:
                sys.setswitchinterval(self._usual_s)


TURNS = Turns()
"""The one there is: what it changes is the whole process's."""


@contextmanager
def short_turns() -> Iterator[None]:
    """While the caller's thread computes."""
    TURNS.shorten()
    try:
        yield
    finally:
        TURNS.restore()
