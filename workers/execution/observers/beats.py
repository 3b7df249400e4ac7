"""Tells health checks that a worker serves."""

import asyncio

from omni_jobs.metrics.beat_file import BeatFile
from workers.execution.observers.ledger_observer import LedgerObserver


class Beats(LedgerObserver):
    """Each renewal of the lease is a beat, from ``begin`` on, if the event loop runs as well."""

    def __init__(self, file: BeatFile) -> None:
        self._file = file
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine is loaded. ``loop`` is that of the stage's coroutines."""
        self._loop = loop

    def renewed(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._file.beat)
