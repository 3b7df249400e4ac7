"""An MP4's index, counted before FFmpeg sees it: FFmpeg makes an entry of every frame that a number claims."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from omni_jobs.errors import InvalidRequest, RequestTooLarge

__all__ = ["check_index"]

# Boxes that hold boxes, from their first byte on.
_CONTAINERS = frozenset(
    (
        b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex", b"moof", b"traf", b"mfra", b"udta", b"dinf",
        b"tref", b"wave", b"gmhd", b"hnti", b"matt", b"ilst", b"sinf", b"schi",
    )
)  # fmt: skip
# Tables: where their count stands after version and flags, and the bytes of an entry.
_TABLES = {
    b"stts": (4, 8), b"ctts": (4, 8), b"stsc": (4, 12), b"stco": (4, 4), b"co64": (4, 8), b"stss": (4, 4),
    b"stps": (4, 4), b"elst": (4, 12), b"tfra": (12, 8),
}  # fmt: skip
_RUNS = frozenset((b"stts", b"ctts"))  # each entry: how many frames, and what holds for them
_DEEPEST = 16
_MOST_BOXES = 200_000

# Of a track that is not the picture's: sound comes in more and shorter pieces than frames do.
_OTHERS = 20


def check_index(data: bytes | memoryview, max_frames: int) -> None:
    """Raises InvalidRequest for a table that says more than it holds, RequestTooLarge for too many frames."""
    view = memoryview(data)
    counts = _Counts(max_frames, len(view))
    for name, start, end in _boxes(view, 0, len(view), _Left(_MOST_BOXES), 0):
        if name == b"cmov":
            raise InvalidRequest("the video's index is compressed; write it plainly")
        if name == b"trak":
            counts.next_track()
        elif name == b"hdlr" and end - start >= 12:
            counts.kinds.add(bytes(view[start + 8 : start + 12]))
        elif name in (b"stsz", b"stz2") and end - start >= 12:
            counts.sizes(view, name, start, end)
        elif name == b"trun" and end - start >= 8:
            counts.fragment(view, start, end)
        elif name in _TABLES:
            counts.table(view, name, start, end)
    counts.next_track()


class _Left:
    def __init__(self, boxes: int) -> None:
        self.boxes = boxes


def _boxes(view: memoryview, at: int, end: int, left: _Left, depth: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, start and end of what it holds), an outer box before those inside."""
    while at + 8 <= end:
        size, name, head = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8]), 8
        if size == 1 and at + 16 <= end:
            size, head = int.from_bytes(view[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = end - at
        if size < head:
            return
        left.boxes -= 1
        if left.boxes < 0 or depth > _DEEPEST:
            raise RequestTooLarge("the video's index has too many boxes")
        inside = min(at + size, end)
        yield name, at + head, inside
        if name in _CONTAINERS:
            yield from _boxes(view, at + head, inside, left, depth + 1)
        elif name == b"meta":  # of MP4 after four bytes, of QuickTime at once
            plain = bytes(view[at + head + 4 : at + head + 8]) == b"hdlr"
            yield from _boxes(view, at + head + (0 if plain else 4), inside, left, depth + 1)
        at += size


class _Counts:
    """The frames that one track's tables claim, and those of all fragments."""

    def __init__(self, max_frames: int, file_bytes: int) -> None:
        self._max_frames = max_frames
        self._file_bytes = file_bytes
        self._fragments = 0
        self._frames = 0
        self._plain_sound = False
        self.kinds: set[bytes] = set()  # what its handlers say it is; the picture's, should two differ

    def next_track(self) -> None:
        """The track before is read. Raises RequestTooLarge."""
        if self._plain_sound and b"soun" in self.kinds and b"vide" not in self.kinds:
            self._frames = 0  # samples of PCM: FFmpeg makes an entry a chunk of them, whose table was counted
        most = self._max_frames * (1 if b"vide" in self.kinds else _OTHERS)
        if self._frames > most:
            raise RequestTooLarge(f"the video's index has {self._frames} frames; at most {most} are taken")
        self._frames, self._plain_sound = 0, False
        self.kinds.clear()

    def sizes(self, view: memoryview, name: bytes, start: int, end: int) -> None:
        each, count = struct.unpack_from(">II", view, start + 4)
        if name == b"stz2":
            bits, each = each & 0xFF, 0
        else:
            bits = 32
        needed = 0 if each else -(-count * bits // 8)
        if needed > end - start - 12 or each * count > self._file_bytes:
            raise InvalidRequest(f"the video's index claims {count} frames, which the file does not hold")
        self._frames = max(self._frames, count)

    def table(self, view: memoryview, name: bytes, start: int, end: int) -> None:
        before, each = _TABLES[name]
        if end - start < before + 4:
            return
        (count,) = struct.unpack_from(">I", view, start + before)
        if name == b"elst" and view[start] == 1:
            each = 20
        if count * each > end - start - before - 4:
            raise InvalidRequest(f"the video's index claims {count} entries in {name.decode()}, which are not there")
        if name in _RUNS:
            runs = view[start + 8 : start + 8 + 8 * count].cast("B")
            frames = sum(run[0] for run in struct.iter_unpack(">II", runs))
            self._frames = max(self._frames, frames)
            if name == b"stts":
                self._plain_sound = count == 1 and bytes(runs[4:8]) == b"\0\0\0\1"
        elif name in (b"stco", b"co64"):
            self._chunks(count)

    def _chunks(self, count: int) -> None:
        if count > self._max_frames * _OTHERS:
            raise RequestTooLarge(f"the video's index has {count} chunks; too many")

    def fragment(self, view: memoryview, start: int, end: int) -> None:
        flags, count = int.from_bytes(view[start + 1 : start + 4], "big"), int.from_bytes(view[start + 4 : start + 8])
        before = 4 * ((flags & 0x1 != 0) + (flags & 0x4 != 0))
        each = 4 * sum(flags & bit != 0 for bit in (0x100, 0x200, 0x400, 0x800))
        if count * each > end - start - 8 - before:
            raise InvalidRequest(f"a fragment of the video claims {count} frames, which are not there")
        self._fragments += count
        most = self._max_frames * _OTHERS
        if self._fragments > most:
            raise RequestTooLarge(f"the video's fragments have {self._fragments} frames; at most {most} are taken")
