"""Signals that end a foreground command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in this block on SIGTERM and SIGHUP too, so that it closes all it has opened.

    SIGINT raises it as well where the shell's ``&`` had it ignored. A SIGHUP that nohup ignores stays ignored.
    Only the main thread may use it.
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
