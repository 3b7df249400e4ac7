"""The answers of bulks, kept on the disk until each bulk's lines are read: how much room one takes, and all of them."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

from omni_jobs.errors import RequestTooLarge, ServerBusy
from omni_jobs.settings import Settings

__all__ = ["AllAnswers", "Answers"]

_IN_MEMORY = 1 << 20  # of one bulk
_LARGEST_BULKS = 16  # all may take as much room as so many of the largest


class AllAnswers:
    """Those of all bulks of this process. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self.limit_of_one = settings.max_bulk_answer_bytes
        self.limit = _LARGEST_BULKS * settings.max_bulk_answer_bytes
        self.bytes = 0
        self._lock = threading.Lock()

    def begin(self) -> Answers:
        """Those of one bulk more. Raises ServerBusy while there is no room."""
        self.check_room()
        return Answers(self)

    def check_room(self) -> None:
        """Raises ServerBusy while there is none."""
        if self.bytes >= self.limit:
            raise ServerBusy(f"the answers of all bulks have come to {self.bytes} bytes, and may have {self.limit}")

    def add(self, more: int) -> None:
        """Note so many bytes more, or fewer."""
        with self._lock:
            self.bytes += more


class Answers:
    """Those of one bulk; one thread at a time uses them. ``close`` them."""

    def __init__(self, of_all: AllAnswers) -> None:
        self._all = of_all
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 — closed in ``close``
        self.bytes = 0

    def check_room(self) -> None:
        """Raises RequestTooLarge where these are too many for one bulk, and ServerBusy where those of all are."""
        if self.bytes >= self._all.limit_of_one:
            raise RequestTooLarge(
                f"the answers have come to {self.bytes} bytes, and a bulk may have {self._all.limit_of_one}",
                field="body",
            )
        self._all.check_room()

    def write(self, answer: Mapping[str, Any]) -> None:
        text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        self.bytes += len(text)
        self._all.add(len(text))
        self._file.write(text)

    def flush(self) -> None:
        """Raises OSError where the disk is full."""
        self._file.flush()

    def read(self) -> Iterator[bytes]:
        """All of them, from the first."""
        self._file.seek(0)
        while chunk := self._file.read(64 << 10):
            yield chunk

    def close(self) -> None:
        """Give their room back. May be called again."""
        with suppress(OSError):  # a full disk, again
            self._file.close()
        self._all.add(-self.bytes)
        self.bytes = 0
