"""The signals that end a command in the foreground, such as ``omni-jobs up``."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raised_signals() -> Iterator[None]:
    """A context manager that raises KeyboardInterrupt in its block on SIGINT, SIGTERM and SIGHUP.

    So the block closes all that it has opened. SIGINT raises even where a shell's ``&`` had it ignored, but a SIGHUP
    that nohup ignores stays ignored. Only the main thread may use this.
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
