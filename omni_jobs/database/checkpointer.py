"""SQLite's checkpoints, beside its writers: a thread of its own copies what is committed from the log into the file.

By SQLite's default whoever commits the thousandth page copies them all and waits for the disk twice: the more
jobs there are, the more of these pages are different ones.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

__all__ = ["BACKSTOP_PAGES", "Checkpointer"]

logger = logging.getLogger(__name__)

BACKSTOP_PAGES = 10_000
"""Of the log: from there on whoever commits copies them after all, or under unbroken load it might only grow."""

_PAUSE_S = 0.1  # for more to be committed, of which many pages are the same


class Checkpointer:
    """Of one file in one process. Its thread begins with the first commit."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._committed = threading.Event()
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None  # the thread's own

    def note_commit(self) -> None:
        """Something is being committed; on any thread, with each commit."""
        if self._committed.is_set():
            return
        self._committed.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._closed.is_set():
                    self._thread = threading.Thread(target=self._run, name="checkpointer", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Wait for a checkpoint that is under way; no other begins."""
        with self._starting:
            self._closed.set()
            self._committed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._committed.wait()
            self._closed.wait(_PAUSE_S)
            self._committed.clear()
            if self._closed.is_set():  # looked at after clearing: what close() set may just have been cleared
                break
            try:
                self._checkpoint()
            except sqlite3.Error as error:
                logger.warning("no checkpoint of %s: %s", self._file, error)  # the next writer will meet it
                self._disconnect()  # the file may be another one now
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _checkpoint(self) -> None:
        """PASSIVE waits for nobody and makes nobody wait; what is not copied now is so the next time."""
        if self._connection is None:
            self._connection = sqlite3.connect(self._file, isolation_level=None)
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
