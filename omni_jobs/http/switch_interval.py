"""``short_switch_interval``: makes Python's threads take turns more often while something large is read or answered.

A small submit passes between threads some dozens of times, and waits each time until the interpreter switches to its
thread. A short switch interval costs a twentieth of the server's throughput, so it is set for those times alone.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SHORT_S = 0.0001

_lock = threading.Lock()
_usual_s: list[float] = []  # the interval before each of the contexts that are entered now


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Context manager: shorten the interpreter's switch interval until the last such context ends. Safe for threads."""
    with _lock:
        _usual_s.append(_usual_s[0] if _usual_s else sys.getswitchinterval())
        sys.setswitchinterval(_SHORT_S)
    try:
        yield
    finally:
        with _lock:
            sys.setswitchinterval(_SHORT_S if len(_usual_s) > 1 else _usual_s[0])
            _usual_s.pop()
