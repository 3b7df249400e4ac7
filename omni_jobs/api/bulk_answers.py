"""``Answers``: keeps a bulk's answers on the disk until its lines are read. ``AllAnswers``: bounds the bytes of all."""

import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from anyio import CapacityLimiter

from omni_jobs.errors import RequestTooLarge, ServerBusy
from omni_jobs.settings import Settings

_IN_MEMORY_BYTES = 1 << 20  # of one bulk; the rest is on the disk
_LARGEST_BULKS = 16  # the answers of all bulks may take as many bytes as those of this many of the largest


class AllAnswers:
    """Counts the bytes of the answers of all bulks of this process; ``check_room`` bounds them. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self.limit_of_one = settings.max_bulk_answer_bytes
        self.limit = _LARGEST_BULKS * settings.max_bulk_answer_bytes
        self.bytes = 0
        self.writes = CapacityLimiter(1)  # one thread at a time writes answers, because it uses the CPU
        self._lock = threading.Lock()

    def check_room(self) -> None:
        """Raise ServerBusy while the answers of all bulks have as many bytes as they may have."""
        if self.bytes >= self.limit:
            raise ServerBusy(f"the answers of all bulks have come to {self.bytes} bytes, and may have {self.limit}")

    def add(self, more: int) -> None:
        """Count ``more`` bytes, also beyond the limit; a negative number where answers are deleted."""
        with self._lock:
            self.bytes += more


class Answers:
    """The answers of one bulk, a JSON line each, in a file. For one thread at a time; ``close`` them at the end."""

    def __init__(self, of_all: AllAnswers) -> None:
        """Begin the answers of a new bulk. Raises ServerBusy while the answers of all bulks have too many bytes."""
        of_all.check_room()
        self._all = of_all
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 — closed in ``close``
        self.bytes = 0

    def check_room(self) -> None:
        """Raise RequestTooLarge if this bulk has too many bytes of answers, ServerBusy if all bulks have."""
        if self.bytes >= self._all.limit_of_one:
            raise RequestTooLarge(
                f"the answers have come to {self.bytes} bytes, and a bulk may have {self._all.limit_of_one}"
                " (max_bulk_answer_bytes)",
                field="body",
            )
        self._all.check_room()

    def write(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Append answers to the file, each as one line of JSON. Raises OSError if the disk is full."""
        for answer in answers:
            text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
            self.bytes += len(text)
            self._all.add(len(text))
            self._file.write(text)
        self._file.flush()

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of all answers, from the first answer on, in pieces that may end within a line."""
        self._file.seek(0)
        while chunk := self._file.read(64 << 10):
            yield chunk

    def close(self) -> None:
        """Delete the file, and count its bytes no longer. May be called again."""
        with suppress(OSError):  # the disk is still full
            self._file.close()
        self._all.add(-self.bytes)
        self.bytes = 0
