"""``links``: the sounds that stand one behind the other in one file, of which libsndfile reads the first alone.

An Ogg may be chained, as a radio's stream is, and people join MP3s by putting their bytes together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from omni_jobs.media.formats import behind_id3

_OGG_PAGE = b"OggS"
_PAGE_HEAD = 27  # bytes of an Ogg page before its table of segments
_FIRST_PAGE = 0x02  # the flag of a page that begins a stream
# The head that encoders put into a silent first frame. With both flags it tells how many frames and bytes there are.
_MP3_HEAD = re.compile(rb"\xff[\xe0-\xff].{7,34}?(?:Xing|Info)\0\0\0(.).{4}(.{4})", re.DOTALL)
_HAS_FRAMES_AND_BYTES = 0x03
_FIRST_BYTES = 64  # in which a head stands, if there is one
_ID3V1 = 128  # bytes of a tag behind an MP3
_MOST_OF_A_FRAME = 1500  # bytes: what is left behind an MP3 may be a frame that its head does not count


def links(data: bytes | memoryview, format_name: str) -> Iterator[memoryview]:
    """Yield the pieces of a sound file that are sounds of their own: of an Ogg or MP3 one or more, of others itself.

    The first piece of an Ogg is all of it, so that nobody who needs only the first walks over all pages.
    """
    view = memoryview(data)
    if format_name == "mp3":
        yield from _mp3s(view)
        return
    yield view
    if format_name == "ogg":
        yield from _later_oggs(view)


def _later_oggs(view: memoryview) -> Iterator[memoryview]:
    """Yield the second and later links: each begins with a first page behind one that is none."""
    at = begin = 0
    is_within = False
    while at + _PAGE_HEAD <= len(view) and bytes(view[at : at + 4]) == _OGG_PAGE:
        is_first = bool(view[at + 5] & _FIRST_PAGE)
        if is_first and is_within:
            if begin:
                yield view[begin:at]
            begin = at
        is_within = not is_first
        segments = view[at + 26]
        at += _PAGE_HEAD + segments + sum(view[at + _PAGE_HEAD : at + _PAGE_HEAD + segments])
    if begin:
        yield view[begin:]


def _mp3s(view: memoryview) -> Iterator[memoryview]:
    """Yield the MP3s: another begins right behind the bytes that the head of the one before counts."""
    begin = 0
    while True:
        frames = behind_id3(view, begin)
        head = _MP3_HEAD.match(bytes(view[frames : frames + _FIRST_BYTES]))
        if head is None or head[1][0] & _HAS_FRAMES_AND_BYTES != _HAS_FRAMES_AND_BYTES:
            break
        end = frames + int.from_bytes(head[2], "big")
        end += _ID3V1 if bytes(view[end : end + 3]) == b"TAG" else 0
        follows = behind_id3(view, end)
        if end <= frames or len(view) - follows < _MOST_OF_A_FRAME or view[follows] != 0xFF:
            break
        yield view[begin:end]
        begin = end
    yield view[begin:]
