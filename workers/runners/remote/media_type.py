"""The formats of the media that servers answer with, found in their first bytes, whatever the servers say."""

from collections.abc import Mapping
from typing import Literal

MediaKind = Literal["audio", "image", "video"]

_KNOWN: Mapping[MediaKind, frozenset[str]] = {
    "audio": frozenset({"wav", "flac", "ogg", "mp3", "aac"}),
    "image": frozenset({"png", "jpeg", "webp", "gif"}),
    "video": frozenset({"mp4", "webm", "avi"}),
}


def media_format(kind: MediaKind, data: bytes | memoryview) -> str | None:
    """Return the format of a medium by its first bytes, ``wav`` or ``png`` for example; None: none of its kind."""
    found = _format(bytes(data[:12]))
    return found if found in _KNOWN[kind] else None


def _format(head: bytes) -> str | None:
    if head[:4] == b"RIFF":
        return {b"WAVE": "wav", b"WEBP": "webp", b"AVI ": "avi"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "mp4"
    for begin, name in _MAGIC:
        if head.startswith(begin):
            return name
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # MPEG's sync word; AAC has no layer
        return "aac" if head[1] & 0xF6 == 0xF0 else "mp3"
    return None


_MAGIC = (
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"\x1a\x45\xdf\xa3", "webm"),
)
