"""``GrowingText``: a text that comes in pieces, and its progress."""

import asyncio

from workers.runners.runner import ProgressSink
from workers.stages.types import WAITING, Progress

_REPORT_EVERY_S = 0.05  # each report has the text so far, so more of them would cost more than the text,
_OFTEN_CHARS = 256 << 10  # and of a text that is longer than this so many fewer come
_JOIN_AT = 4096  # pieces, which cost more memory than their characters


class GrowingText:
    """Collects the pieces of a text and reports it as it grows: at once, then every twentieth of a second.

    A report has the text so far. Its count of tokens never falls, and never passes the total.
    """

    def __init__(self, progress: ProgressSink, total: int | None, *, is_shown: bool = True) -> None:
        """Report to ``progress``, in tokens of ``total``; the text itself only where it ``is_shown``."""
        self._is_shown = is_shown
        self._progress = progress
        self._total = total
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self._shown = ""
        self._unshown = 0  # the pieces that are not in ``_shown``, at the end of ``_pieces``
        self._done = 0
        self._is_reported = True
        self._reported_at = 0.0
        self._loop = asyncio.get_running_loop()

    def add(self, piece: str, tokens: int | None = None) -> None:
        """Add a piece. ``tokens`` of the text are made so far, as the server counts; None: one for each piece."""
        if piece:
            self._pieces.append(piece)
            self._unshown += 1
        done = self._done + 1 if tokens is None else max(tokens, self._done)
        self._done = done if self._total is None else min(done, self._total)
        self._is_reported = False
        if self._loop.time() >= self._reported_at + _REPORT_EVERY_S * max(1.0, len(self._shown) / _OFTEN_CHARS):
            self._report()
        if len(self._pieces) >= _JOIN_AT:
            self._show()
            self._joined.append("".join(self._pieces))
            self._pieces.clear()

    def end(self) -> None:
        """Report what is not reported yet."""
        if not self._is_reported:
            self._report()

    def _report(self) -> None:
        self._reported_at = self._loop.time()
        self._is_reported = True
        self._show()
        self._progress(Progress(self._done, self._total, "tokens", self._shown if self._is_shown else None))

    def _show(self) -> None:
        if self._unshown:
            self._shown = "".join((self._shown, *self._pieces[-self._unshown :]))
            self._unshown = 0

    def __str__(self) -> str:
        return "".join((*self._joined, *self._pieces))


class Onward:
    """A progress sink that passes on what goes further than all before, for a run that may begin again."""

    def __init__(self, progress: ProgressSink) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, progress: Progress) -> None:
        if progress.done >= self._done or progress.unit == WAITING:
            self._done = max(progress.done, self._done)
            self._progress(progress)
