"""Liveness: whether this worker consumes, and not only lives.

Alive means: it popped a hint from its stage's queue, or had no room for one, or proved the
queue empty (a pop timed out) within the last ``stall_after_s`` seconds. A worker of which none of that is
true while its queue has work has stalled without an error, as consumers of Redis do
once in a while; and one whose stage's event loop has not turned for as long has
stalled too. Both are to be started anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from omni_jobs.errors import BrokerUnavailable

__all__ = ["Liveness"]

logger = logging.getLogger(__name__)

_LOOKS = 6  # in stall_after_s


class Liveness:
    """Told by Celery's main thread through ``mark``; watches from a thread of its own."""

    def __init__(
        self,
        stall_after_s: float,
        loop: asyncio.AbstractEventLoop,
        *,
        has_room: Callable[[], bool],
        queue_depth: Callable[[], int],
        on_stall: Callable[[str], None],
    ) -> None:
        """``queue_depth``: messages waiting, asked over a connection of its own; may raise BrokerUnavailable.

        ``has_room``: whether another hint is of use. Both are called from the watching thread, and so is
        ``on_stall``, once, with the reason.
        """
        self._stall_after_s = stall_after_s
        self._loop = loop
        self._has_room = has_room
        self._queue_depth = queue_depth
        self._on_stall = on_stall
        self._proved_at = 0.0
        self._turned_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)

    def start(self) -> None:
        """From here on silence counts."""
        self.mark()
        self._turned()
        self._thread.start()

    def mark(self) -> None:
        """A pop was answered, by a message or by nothing."""
        self._proved_at = time.monotonic()

    def close(self) -> None:
        self._closed.set()

    def _turned(self) -> None:
        self._turned_at = time.monotonic()

    def _watch(self) -> None:
        while not self._closed.wait(self._stall_after_s / _LOOKS):
            try:
                reason = self._look()
            except Exception as error:
                # A bug. Nobody would notice a stall any more: better a new worker than one unwatched.
                logger.exception("liveness")
                reason = f"its liveness cannot be told: {type(error).__name__}: {error}"
            if reason is not None and not self._closed.is_set():
                self._on_stall(reason)
                return

    def _look(self) -> str | None:
        now = time.monotonic()
        if (blocked := now - self._turned_at) > self._stall_after_s:
            return f"the stage's event loop has not turned for {blocked:.0f} s"
        self._loop.call_soon_threadsafe(self._turned)
        if not self._has_room():
            self.mark()
        if (silent := now - self._proved_at) <= self._stall_after_s:
            return None
        try:
            depth = self._queue_depth()
        except BrokerUnavailable as error:
            logger.warning("%s", error)
            self.mark()  # the consumer finds its way back when the broker does
            return None
        return f"{depth} messages wait and none was taken for {silent:.0f} s" if depth else None
