"""Bound the index of an MP4 before FFmpeg reads it, because FFmpeg allocates an entry for every frame it claims.

The bound holds only if this module reads the same tables as FFmpeg. So it walks boxes as ``mov_read_default`` of
FFmpeg's ``libavformat/mov.c`` does, and refuses tables in boxes that FFmpeg reads in other ways.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Set
from itertools import pairwise

import numpy as np

from omni_jobs.errors import InvalidRequest, RequestTooLarge

# Boxes whose content is boxes, from its first byte on.
_CONTAINERS = frozenset(
    (
        b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex", b"moof", b"traf", b"mfra", b"udta", b"dinf",
        b"tref", b"gmhd", b"hnti", b"matt", b"ilst", b"sinf", b"schi",
    )
)  # fmt: skip
# Tables: the offset of their count in the box, and the bytes of an entry.
_TABLES = {
    b"stts": (4, 8), b"ctts": (4, 8), b"stsc": (4, 12), b"stco": (4, 4), b"co64": (4, 8), b"stss": (4, 4),
    b"stps": (4, 4), b"elst": (4, 12), b"tfra": (12, 8), b"sbgp": (8, 8), b"iinf": (4, 8), b"iloc": (6, 6),
}  # fmt: skip
_RUNS = frozenset((b"stts", b"ctts", b"sbgp"))  # tables of runs: a number of frames and a value for all of them
# FFmpeg reads boxes in these boxes too, but not from their first byte on.
_OPAQUE = frozenset((b"stsd", b"wave", b"iprp"))
# The names that may not occur in them: tables, boxes that lead out of the box, and boxes that end its parent.
_HIDDEN = re.compile(
    b"stts|ctts|stsc|stco|co64|stss|stps|elst|tfra|sbgp|stsz|stz2|trun|stsd|iprp|iinf|iloc|cmov|trak|mdat"
)
# Handlers of tracks that are not sound.
_OTHER_KINDS = frozenset((b"vide", b"subp", b"clcp"))
_DEEPEST = 16
_MOST_BOXES = 200_000

# The bound for other tracks, in multiples of the picture's, because sound has more and shorter pieces.
_OTHERS = 20
# The bound for the entries of all edits, in multiples of the picture's: FFmpeg makes entries for each edit of a track.
_EDITED = 100
_PIECE = 1024  # samples of PCM for which FFmpeg makes one entry

# Bytes of a sample description's fixed part: a picture's, its palette's, and a sound's by its version.
_PICTURE, _PALETTE = 86, 8 + 256 * 8
_SOUND = {0: 36, 1: 52}
_LONGEST_SOUND = 72


def check_index(data: bytes | memoryview, max_frames: int) -> None:
    """Check what the index of an MP4 claims. ``max_frames`` bounds a picture's track; others may have 20 times that.

    Raise InvalidRequest for a compressed index, and for a table that has fewer entries than it claims or does not
    belong where it is; RequestTooLarge for too many frames, chunks, edits or boxes.
    """
    view = memoryview(data)
    counts = _Counts(max_frames, len(view))
    for name, start, end in _boxes(view, 0, len(view), _Walk.of(view), 0):
        if name == b"cmov":
            raise InvalidRequest("the file's index is compressed; write it plainly")
        if name in _OPAQUE:
            _check_opaque(view, name, start, end, counts.kinds)
        elif name == b"trak":
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


class _Walk:
    """The state of one walk over the boxes: the boxes it may still read, and the names that act as ``moov``."""

    def __init__(self, boxes: int, moovs: Set[bytes]) -> None:
        self.boxes = boxes
        self.moovs = moovs

    @classmethod
    def of(cls, view: memoryview) -> _Walk:
        """Begin a walk: FFmpeg reads a ``hoov`` box as an index too, and a ``free`` box when there is no ``moov``."""
        outer = _boxes(view, 0, len(view), cls(_MOST_BOXES, frozenset()), 0, inside=False)
        has_moov = any(name == b"moov" for name, _, _ in outer)
        return cls(_MOST_BOXES, frozenset((b"hoov",)) if has_moov else frozenset((b"hoov", b"free")))


def _boxes(
    view: memoryview, at: int, end: int, walk: _Walk, depth: int, *, inside: bool = True
) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start of the content, end) of each box, and with ``inside`` of the boxes in it after it.

    Raise RequestTooLarge for too many or too deeply nested boxes.
    """
    while at + 8 <= end:
        size, name, head = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8]), 8
        if size == 1 and at + 16 <= end:
            size, head = int.from_bytes(view[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = end - at
        if size < head:
            return
        walk.boxes -= 1
        if walk.boxes < 0 or depth > _DEEPEST:
            raise RequestTooLarge("the file's index has too many boxes")
        start, stop = at + head, min(at + size, end)
        yield name, start, stop
        if name == b"meta":
            start = _first_of_meta(view, start, stop)
        elif name in walk.moovs and bytes(view[start + 4 : start + 8]) not in (b"mvhd", b"cmov"):
            start = stop
        if inside and (name in _CONTAINERS or name == b"meta" or name in walk.moovs):
            yield from _boxes(view, start, stop, walk, depth + 1)
        at += size


def _first_of_meta(view: memoryview, start: int, end: int) -> int:
    """Return where the boxes in ``meta`` begin, at its ``hdlr``, before which any number of words may stand."""
    words = np.frombuffer(view[start : start + max(0, end - start - 5) // 4 * 4], ">u4")
    handlers = np.flatnonzero(words == int.from_bytes(b"hdlr", "big"))
    return start + 4 * int(handlers[0]) - 4 if len(handlers) else end


def _check_opaque(view: memoryview, name: bytes, start: int, end: int, kinds: Set[bytes]) -> None:
    hidden = _HIDDEN.search(view, start, end)
    if hidden is not None:
        raise InvalidRequest(f"the file has {hidden[0].decode()} in {name.decode()}, where it does not belong")
    if name == b"stsd":
        _check_descriptions(view, start, end, kinds)
    elif name == b"iprp" and (end - start < 8 or int.from_bytes(view[start : start + 4], "big") > end - start):
        raise InvalidRequest("the file's iprp is shorter than what it holds")


def _check_descriptions(view: memoryview, start: int, end: int, kinds: Set[bytes]) -> None:
    """Raise InvalidRequest for a description of a wrong length, because FFmpeg would read beyond it."""
    count, at = int.from_bytes(view[start + 4 : start + 8], "big"), start + 8
    for _ in range(count):
        size = int.from_bytes(view[at : at + 4], "big")
        if size < 16 or at + size > end or (count > 1 and size < _least_description(view, at, kinds)):
            raise InvalidRequest("the file's stsd is shorter than what it holds")
        at += size


def _least_description(view: memoryview, at: int, kinds: Set[bytes]) -> int:
    if b"soun" in kinds and not kinds & _OTHER_KINDS:
        return _SOUND.get(int.from_bytes(view[at + 16 : at + 18], "big"), _LONGEST_SOUND)
    depth = int.from_bytes(view[at + 82 : at + 84], "big") & 0x1F
    return _PICTURE + (_PALETTE if depth in (1, 2, 4, 8) else 0)


class _Counts:
    """Count the frames that each track's tables and all fragments claim."""

    def __init__(self, max_frames: int, file_bytes: int) -> None:
        self._max_frames = max_frames
        self._file_bytes = file_bytes
        self._fragments = 0
        self.kinds: set[bytes] = set()  # the track's handlers; one of a picture decides
        self._begin_track()

    def _begin_track(self) -> None:
        self.kinds.clear()
        self._frames = 0
        self._edits = 0
        self._chunks = 0
        self._of_chunks: list[list[tuple[int, int]]] = []  # of each stsc: (first chunk, samples a chunk) of its runs
        self._runs: list[bytes] = []  # the names of the track's tables of runs
        self._plain_times = False

    def next_track(self) -> None:
        """Check the track that ends here and begin the next. Raise RequestTooLarge."""
        pieces = max((_pieces(runs, self._chunks) for runs in self._of_chunks), default=0)
        plain_sound = self._plain_times and self._runs == [b"stts"]
        if plain_sound and b"soun" in self.kinds and not self.kinds & _OTHER_KINDS:
            self._frames = 0  # they are samples of PCM, and FFmpeg makes one entry for a piece of them
        frames = max(self._frames, pieces)
        most = self._max_frames * (1 if b"vide" in self.kinds else _OTHERS)
        if frames > most:
            raise RequestTooLarge(f"the file's index has {frames} frames; at most {most} are taken (max_video_frames)")
        most = self._max_frames * _EDITED
        if frames * self._edits > most:
            raise RequestTooLarge(f"the file has {self._edits} edits of {frames} frames; at most {most} are made")
        self._begin_track()

    def sizes(self, view: memoryview, name: bytes, start: int, end: int) -> None:
        """Count a table of sample sizes, ``stsz`` or ``stz2``. Raise InvalidRequest."""
        each, count = struct.unpack_from(">II", view, start + 4)
        if name == b"stz2":
            bits, each = each & 0xFF, 0
        else:
            bits = 32
        needed = 0 if each else -(-count * bits // 8)
        if needed > end - start - 12 or each * count > self._file_bytes:
            raise InvalidRequest(f"the file's index claims {count} frames, which the file does not hold")
        self._frames = max(self._frames, count)

    def table(self, view: memoryview, name: bytes, start: int, end: int) -> None:
        """Count one of ``_TABLES``. Raise InvalidRequest or RequestTooLarge."""
        before, each = _TABLES[name]
        version = view[start] if start < end else 0
        if name == b"elst" and version == 1:
            each = 20
        elif name == b"sbgp" and version == 1:
            before += 4
        elif (name == b"iinf" and version == 0) or (name == b"iloc" and version < 2):
            return  # a count of 16 bits is harmless
        if end - start < before + 4:
            return
        (count,) = struct.unpack_from(">I", view, start + before)
        if count * each > end - start - before - 4:
            raise InvalidRequest(f"the file's index claims {count} entries in {name.decode()}, which are not there")
        entries = view[start + before + 4 : start + before + 4 + count * each]
        if name in _RUNS:
            self._frames = max(self._frames, sum(run[0] for run in struct.iter_unpack(">II", entries)))
            self._runs.append(name)
            self._plain_times = name == b"stts" and count == 1 and bytes(entries[4:]) == b"\0\0\0\1"
        elif name == b"stsc":
            self._of_chunks.append([(first, samples) for first, samples, _ in struct.iter_unpack(">III", entries)])
        elif name == b"elst":
            self._edits = max(self._edits, count)
        elif name in (b"stco", b"co64"):
            self._chunks = max(self._chunks, count)
            if count > self._max_frames * _OTHERS:
                raise RequestTooLarge(f"the file's index has {count} chunks; too many")

    def fragment(self, view: memoryview, start: int, end: int) -> None:
        """Count a fragment's ``trun``. Raise InvalidRequest or RequestTooLarge."""
        flags, count = int.from_bytes(view[start + 1 : start + 4], "big"), int.from_bytes(view[start + 4 : start + 8])
        before = 4 * ((flags & 0x1 != 0) + (flags & 0x4 != 0))
        each = 4 * sum(flags & bit != 0 for bit in (0x100, 0x200, 0x400, 0x800))
        if count * each > end - start - 8 - before:
            raise InvalidRequest(f"a fragment of the file claims {count} frames, which are not there")
        self._fragments += count
        most = self._max_frames * _OTHERS
        if self._fragments > most:
            raise RequestTooLarge(
                f"the file's fragments have {self._fragments} frames; at most {most} are taken (max_video_frames)"
            )


def _pieces(runs: list[tuple[int, int]], chunks: int) -> int:
    """Return the number of entries that FFmpeg makes for PCM: one for each piece of each chunk."""
    if not runs:
        return 0
    firsts = [first for first, _ in runs]
    each = [-(-samples // _PIECE) for _, samples in runs]
    if any(before >= after for before, after in pairwise([0, *firsts])):
        return chunks * max(each)  # FFmpeg repairs a table that is out of order, so take the most it can come to
    ends = [*firsts[1:], chunks + 1]
    return sum(max(0, end - first) * pieces for first, end, pieces in zip(firsts, ends, each, strict=True))
