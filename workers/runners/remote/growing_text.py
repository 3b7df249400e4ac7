"""``GrowingText``: a text that comes in pieces, and its progress."""

import asyncio

from workers.runners.runner import ProgressSink
from workers.stages.types import Progress

_REPORT_EVERY_S = 0.05  # each report has all the text, so more of them would cost more than the text


class GrowingText:
    """Collects the pieces of a text and reports it as it grows: at once, then every twentieth of a second."""

    def __init__(self, progress: ProgressSink, total: int | None) -> None:
        """Report to ``progress``, in tokens of ``total``."""
        self._progress = progress
        self._total = total
        self._pieces: list[str] = []
        self._reported_at = 0.0
        self._loop = asyncio.get_running_loop()

    def add(self, piece: str, tokens: int | None = None) -> None:
        """Add a piece. ``tokens`` of the text are made so far, as the server counts; None: one for each piece."""
        self._pieces.append(piece)
        now = self._loop.time()
        if now >= self._reported_at + _REPORT_EVERY_S:
            self._reported_at = now
            done = len(self._pieces) if tokens is None else tokens
            self._progress(Progress(done, self._total, "tokens", str(self)))

    def __str__(self) -> str:
        return "".join(self._pieces)
