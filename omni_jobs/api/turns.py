"""Threads' turns at the interpreter: shorter ones while large bodies are read, because they keep threads computing.

A small submit passes between threads some dozens of times, and each time waits for its turn. Short turns cost
a twentieth of what the server can do, so they are for those times alone.
"""

from __future__ import annotations

import sys

__all__ = ["Turns"]

_SHORT_S = 0.0002


class Turns:
    """Of one event loop. ``shorten`` and ``restore`` come in pairs, any number of them at once."""

    def __init__(self) -> None:
        self._usual_s = sys.getswitchinterval()
        self._shortened = 0

    def shorten(self) -> None:
        if not self._shortened:
            sys.setswitchinterval(_SHORT_S)
        self._shortened += 1

    def restore(self) -> None:
        self._shortened -= 1
        if not self._shortened:
            sys.setswitchinterval(self._usual_s)
