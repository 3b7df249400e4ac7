"""Where a sound file's samples lie, and how many bytes of them there are, whatever its header says.

A writer that cannot seek states a size before it knows it: the largest that fits, some round number, or 0. Libraries
believe it, so ``true_length`` gives them a header that is right. A file that lacks its end is told from such a file by
its size: one that could be an upload is believed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omni_jobs.errors import InvalidRequest

if TYPE_CHECKING:
    from omni_jobs.media.media_limits import MediaLimits

_LARGE = 0x7FFF_0000  # sizes from here on are the largest that fit, less some header
_ROUND = frozenset((2_000_000_000, 1 << 30))  # sizes that known writers state
# Chunks that stand behind samples, which are believed to be chunks even where they are cut off.
_USUAL = frozenset((b"LIST", b"INFO", b"id3 ", b"ID3 ", b"bext", b"cue ", b"fact", b"JUNK", b"junk", b"PAD ", b"COMT"))


@dataclass(slots=True)
class _Samples:
    """What a header says of the samples.

    begin      index of their first byte
    stated     their bytes; 0 or less where the header says none
    size_at    index of the number that states them
    size       that number's form, as ``struct`` writes it
    also       bytes that the number counts beside them
    byte_rate  of a second of them; 0 where the header does not say
    head       the head of a chunk behind them: name and size, as ``struct`` writes them; empty: there are none
    """

    begin: int
    stated: int
    size_at: int
    size: str
    also: int = 0
    byte_rate: float = 0.0
    head: str = ""


def true_length(data: bytes | memoryview, format_name: str, limits: MediaLimits) -> bytes | memoryview:
    """Return a sound whose header states how many bytes of samples there are: ``data`` itself, or a mended copy.

    Other formats than WAV, RF64, W64, AIFF, CAF and AU are returned as they are. Raise InvalidRequest for a file
    without samples or without its end.
    """
    find = _FINDERS.get(format_name)
    if find is None:
        return data
    name = format_name.upper()
    samples = find(data)
    if samples is None:
        raise InvalidRequest(f"the {name} is cut off: it has no data chunk")
    present = len(data) - samples.begin
    if 0 < samples.stated <= present:
        return data
    if samples.stated <= 0:
        if present <= 0 or _is_chunk(data, samples):
            return data
    elif not _is_placeholder(samples, limits):
        raise InvalidRequest(
            f"the {name} is cut off: {max(present, 0)} of its {samples.stated} bytes of samples are there"
        )
    mended = bytearray(data)
    struct.pack_into(samples.size, mended, samples.size_at, max(present, 0) + samples.also)
    return bytes(mended)


def _is_placeholder(samples: _Samples, limits: MediaLimits) -> bool:
    """Return whether a size that is too large was stated before it was known: it is none that an upload could have."""
    if samples.stated >= _LARGE or samples.stated in _ROUND or samples.stated > limits.max_body_bytes:
        return True
    return samples.byte_rate > 0 and samples.stated / samples.byte_rate > limits.max_audio_s


def _is_chunk(data: bytes | memoryview, samples: _Samples) -> bool:
    """Return whether chunks follow where samples of an unknown number would begin."""
    if not samples.head:
        return False
    head, at = struct.Struct(samples.head), samples.begin
    if bytes(data[at : at + 4]) in _USUAL:
        return True
    while at + head.size <= len(data):
        name, size = head.unpack_from(data, at)
        if not (name.isascii() and name.decode("ascii", "replace").isprintable()) or size < 0:
            return False
        at += head.size + size + size % 2
    return len(data) <= at <= len(data) + 1


def _wav(data: bytes | memoryview) -> _Samples | None:
    order = ">" if bytes(data[:4]) == b"RIFX" else "<"
    is_long = bytes(data[:4]) in (b"RF64", b"BW64")
    at, byte_rate, long_size_at = 12, 0.0, 0
    while at + 8 <= len(data):
        name, size = struct.unpack_from(f"{order}4sI", data, at)
        if name == b"fmt " and at + 20 <= len(data):
            (byte_rate,) = struct.unpack_from(f"{order}I", data, at + 16)
        elif name == b"ds64" and is_long and at + 24 <= len(data):
            long_size_at = at + 16
        elif name == b"data":
            if long_size_at:
                (stated,) = struct.unpack_from("<q", data, long_size_at)
                unknown = 1 << 62 if stated < 0 else stated
                return _Samples(at + 8, unknown, long_size_at, "<q", 0, byte_rate, "<4sI")
            return _Samples(at + 8, size, at + 4, f"{order}I", 0, byte_rate, f"{order}4sI")
        at += 8 + size + size % 2
    return None


def _w64(data: bytes | memoryview) -> _Samples | None:
    at, byte_rate = 40, 0.0
    while at + 24 <= len(data):
        name, size = bytes(data[at : at + 4]), struct.unpack_from("<q", data, at + 16)[0]
        if name == b"data":
            stated = size - 24 if size >= 0 else 1 << 62
            return _Samples(at + 24, stated, at + 16, "<q", 24, byte_rate)
        if name == b"fmt " and at + 36 <= len(data):
            (byte_rate,) = struct.unpack_from("<I", data, at + 32)
        if size < 24:
            return None
        at += -(-size // 8) * 8
    return None


def _aiff(data: bytes | memoryview) -> _Samples | None:
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from(">4sI", data, at)
        if name == b"SSND":  # an offset and the size of blocks stand before the samples
            return _Samples(at + 16, size - 8, at + 4, ">I", 8, 0.0, ">4sI")
        at += 8 + size + size % 2
    return None


def _caf(data: bytes | memoryview) -> _Samples | None:
    at = 8
    while at + 12 <= len(data):
        name, size = struct.unpack_from(">4sq", data, at)
        if name == b"data":  # a count of edits stands before the samples; -1: they go on to the end
            stated = size - 4 if size >= 0 else len(data) - at - 16
            return _Samples(at + 16, stated, at + 4, ">q", 4, 0.0, ">4sq")
        if size < 0:
            return None
        at += 12 + size
    return None


def _au(data: bytes | memoryview) -> _Samples | None:
    if len(data) < 24:
        return None
    order = "<" if bytes(data[:4]) == b"dns." else ">"
    begin, stated = struct.unpack_from(f"{order}II", data, 4)
    return _Samples(begin, stated, 8, f"{order}I")


_FINDERS = {"wav": _wav, "w64": _w64, "aiff": _aiff, "caf": _caf, "au": _au}
