"""Signals that end a foreground command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["raised_signals"]


@contextmanager
def raised_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, by KeyboardInterrupt, so that what it opened is closed.

    So does SIGINT where a shell's ``&`` had it ignored; what nohup ignores stays ignored. In the main thread only.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
