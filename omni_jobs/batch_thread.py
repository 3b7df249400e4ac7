"""``BatchThread``: a thread that handles everything that waits in its queue as one batch."""

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchThread(Generic[T]):
    """A queue and the one thread that drains it.

    An item that comes alone is handled at once. Items that come while a batch is handled form the next batch.
    ``start`` it before the first ``put``, and ``close`` it at the end. Safe for threads.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[list[T]], None],
        *,
        largest_batch: int = sys.maxsize,
        next_timer: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Prepare the thread.

        ``handle`` is called on the thread with a batch, and must not raise: an exception ends the thread.
        ``next_timer`` is asked on the thread before it waits: at which ``time.monotonic()`` to call ``handle``
        with an empty batch if nothing comes until then. None: it waits for the next item however long it takes.
        """
        self._handle = handle
        self._largest_batch = largest_batch
        self._next_timer = next_timer
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()  # None: the end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: T) -> None:
        """Add an item to the next batch. ``item`` is not None."""
        self._items.put(item)

    def close(self, timeout_s: float | None = None) -> None:
        """Handle what waits, end the thread, and wait for its end, ``timeout_s`` at the longest."""
        self._items.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._next_batch()
            self._handle(batch)

    def _next_batch(self) -> tuple[list[T], bool]:
        """Wait for an item or for the timer. Return what waits, and whether the end has come."""
        timer = self._next_timer()
        timeout = None if timer is None else max(0.0, timer - time.monotonic())
        batch: list[T] = []
        try:
            item = self._items.get(timeout=timeout)
            while item is not None:
                batch.append(item)
                if len(batch) == self._largest_batch:
                    return batch, False
                item = self._items.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True
