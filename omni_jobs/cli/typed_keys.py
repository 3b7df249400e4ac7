"""``typed_keys``: what a person types while a command fills the terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_END_OF_INPUT = b"\x04"  # what Ctrl-D sends


@contextmanager
def typed_keys() -> Iterator[Callable[[float], bytes]]:
    """A context manager: in its block the terminal shows nothing of what is typed, and waits for no Enter.

    Its function waits for so many seconds at most, and returns the bytes that were typed; b"" where none were.
    Ctrl-C goes on to interrupt. A terminal that is gone types Ctrl-D. Where stdin is no terminal, nothing is typed.
    """
    if not sys.stdin.isatty():
        yield _nothing_within
        return
    terminal = sys.stdin.fileno()

    def typed_within(seconds: float) -> bytes:
        if not select.select([terminal], [], [], seconds)[0]:
            return b""
        try:
            return os.read(terminal, 1024) or _END_OF_INPUT
        except OSError:
            return _END_OF_INPUT

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield typed_within
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _nothing_within(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""
