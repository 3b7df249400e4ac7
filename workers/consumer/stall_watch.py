"""``StallWatch``: a watch on whether this worker's event loop turns.

A worker whose stage's event loop has not turned for ``stall_after_s`` seconds has stalled without an error, and has to
be started anew. Its ledger still renews its lease, on a thread of its own, so nobody else would notice.

Native code that keeps the interpreter's lock stops the watch's own thread as well: then ``on_check`` is not called.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

_CHECKS = 6  # in stall_after_s


class StallWatch:
    """Checks on a thread of its own whether this worker has stalled. The pool owns it, and ends a stalled worker."""

    def __init__(
        self,
        stall_after_s: float,
        loop: asyncio.AbstractEventLoop,
        *,
        on_stall: Callable[[str, str | None], None],
        on_check: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the watch on a worker whose stage runs on ``loop``.

        The watch's thread calls ``on_stall`` with the reason and the name of the task in which the loop stands still,
        None if it is in no task's, at most once. ``on_check`` is called at the start and at each check.
        """
        self._stall_after_s = stall_after_s
        self._loop = loop
        self._on_stall = on_stall
        self._on_check = on_check
        self._has_turned = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        """Start to watch, as if the loop had just turned."""
        self._on_check()
        self._thread.start()

    def close(self) -> None:
        """Stop watching; ``on_stall`` is called no more."""
        self._closed.set()

    def _turned(self) -> None:
        self._has_turned = True

    def _watch(self) -> None:
        # Checks are counted and no time is taken, because a process that was stopped as a whole has not stalled.
        unanswered = 0
        while not self._closed.wait(self._stall_after_s / _CHECKS):
            self._on_check()
            if self._has_turned:
                self._has_turned, unanswered = False, 0
                self._loop.call_soon_threadsafe(self._turned)
                continue
            unanswered += 1
            if unanswered == _CHECKS:
                task = asyncio.current_task(self._loop)
                name = None if task is None else task.get_name()
                within = "" if name is None else f", in {name}"
                self._on_stall(f"the stage's event loop has not turned for {self._stall_after_s:.0f} s{within}", name)
                return
