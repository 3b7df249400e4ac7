"""``BatchThread``: a thread that handles all items which wait in its queue as one batch."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchThread(Generic[T]):
    """A queue, and one thread that takes all its items at once and handles them as a batch.

    An item that comes alone is handled at once. Items that come while a batch is handled form the next batch.
    ``start`` it before the first ``put``, and ``close`` it at the end. Safe for threads.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[list[T]], None],
        *,
        next_timer: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Prepare the thread.

        handle      called on the thread with each batch, and at the end with what is left, perhaps an empty batch;
                    must not raise, because an exception ends the thread
        next_timer  called on the thread before it waits; returns the ``time.monotonic()`` at which to call ``handle``
                    with an empty batch if no item comes until then, or None to wait for an item without a limit
        """
        self._handle = handle
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
        """Handle the items that wait, then end the thread. An item that is put later is never handled.

        Return after ``timeout_s`` even if the thread still works; None waits without a limit.
        """
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
                item = self._items.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True
