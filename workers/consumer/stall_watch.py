"""``StallWatch``: a watch on whether this worker consumes, and not only lives.

A worker consumes when within the last ``stall_after_s`` seconds it popped a hint from its stage's queue, found the
queue empty (a pop timed out), or had no room for another hint. A worker that did none of this while its queue has work
has stalled without an error, as consumers of Redis do once in a while. So has one whose stage's event loop has not
turned for as long. Both have to be started anew.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from omni_jobs.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

_CHECKS = 6  # in stall_after_s


class StallWatch:
    """Checks on a thread of its own whether this worker has stalled. The pool owns it, and ends a stalled worker."""

    def __init__(
        self,
        stall_after_s: float,
        loop: asyncio.AbstractEventLoop,
        *,
        has_room: Callable[[], bool],
        queue_depth: Callable[[], int],
        on_stall: Callable[[str], None],
    ) -> None:
        """Prepare the watch on a worker whose stage runs on ``loop``.

        The watch's thread asks ``has_room`` whether another hint is of use, and ``queue_depth`` how many messages wait,
        which may raise BrokerUnavailable. It calls ``on_stall`` with the reason, at most once.
        """
        self._stall_after_s = stall_after_s
        self._loop = loop
        self._has_room = has_room
        self._queue_depth = queue_depth
        self._on_stall = on_stall
        self._consumed_at = 0.0
        self._turned_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        """Start to watch, as if a pop had just been answered."""
        self.popped()
        self._turned()
        self._thread.start()

    def popped(self) -> None:
        """Note that a pop from the stage's queue was answered, by a message or by nothing; for any thread."""
        self._consumed_at = time.monotonic()

    def close(self) -> None:
        """Stop watching; ``on_stall`` is called no more."""
        self._closed.set()

    def _turned(self) -> None:
        self._turned_at = time.monotonic()

    def _watch(self) -> None:
        while not self._closed.wait(self._stall_after_s / _CHECKS):
            try:
                reason = self._check()
            except Exception as error:
                # A bug. Nobody would notice a stall any more: a new worker is better than one that is not watched.
                logger.exception("stall-watch")
                reason = f"the watch for stalls failed: {type(error).__name__}: {error}"
            if reason is not None and not self._closed.is_set():
                self._on_stall(reason)
                return

    def _check(self) -> str | None:
        """Return why the worker has stalled, or None."""
        now = time.monotonic()
        if (blocked := now - self._turned_at) > self._stall_after_s:
            return f"the stage's event loop has not turned for {blocked:.0f} s"
        self._loop.call_soon_threadsafe(self._turned)
        if not self._has_room():
            self._consumed_at = now
        if (silent := now - self._consumed_at) <= self._stall_after_s:
            return None
        try:
            depth = self._queue_depth()
        except BrokerUnavailable as error:
            logger.warning("%s", error)
            self._consumed_at = now  # the consumer connects again by itself once the broker is back
            return None
        return f"{depth} messages wait and none was taken for {silent:.0f} s" if depth else None
