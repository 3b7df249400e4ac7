"""``EventReader``: bytes become server-sent events."""

from collections.abc import Iterator

from workers.runners.remote.failures import bad_answer

_MOST = 8 << 20  # bytes of one event
_LINE_COST = 32  # bytes that a line of an event counts for beside its own

Event = tuple[bytes, bytes]
"""Its name, which may be empty, and its data."""


class EventReader:
    """Splits what it is fed into events. Lines end in LF, CR LF or CR, of which each ends its line at once.

    lines  whether there was a line that was a comment or a field that is known
    """

    def __init__(self) -> None:
        self.lines = False
        self._rest = bytearray()  # of a line
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes | bytearray) -> Iterator[Event]:
        """Yield the events that end in a piece; one without data is none. Raises ModelError for one above 8 MiB."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        self._rest += piece
        self._check_size(len(self._rest))
        if b"\n" not in piece and b"\r" not in piece:
            return
        whole = bytes(self._rest)
        if b"\r" in whole:
            self._after_cr = whole.endswith(b"\r")
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, last = whole.split(b"\n")
        self._rest = bytearray(last)
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                yield self._event()
            else:
                self._name = b""

    def last(self) -> Event | None:
        """Return the event that the end of all bytes ends; it may be broken off."""
        if self._rest:
            self._take(bytes(self._rest))
        return self._event() if self._data else None

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field in (b"data", b"error"):
            if field == b"error":  # llama.cpp of old has no name for such an event
                self._name = field
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + _LINE_COST
            self._check_size(0)
        elif field == b"event":
            self._name = value.strip().lower()[:64]
        elif field not in (b"", b"id", b"retry"):
            return
        self.lines = True

    def _event(self) -> Event:
        event = self._name, b"\n".join(self._data)
        self._name = b""
        self._data.clear()
        self._size = 0
        return event

    def _check_size(self, more: int) -> None:
        if self._size + more > _MOST:
            raise bad_answer(f"an event has more than {_MOST} bytes")
