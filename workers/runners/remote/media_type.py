"""The formats of media, found in their first bytes, whatever anybody says about them."""

from collections.abc import Mapping
from typing import Literal

MediaKind = Literal["audio", "image", "video"]

_MEDIA_TYPES: Mapping[MediaKind, Mapping[str, str]] = {
    "audio": {
        "wav": "audio/wav",
        "flac": "audio/flac",
        "ogg": "audio/ogg",
        "mp3": "audio/mpeg",
        "aac": "audio/aac",
    },
    "image": {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"},
    "video": {"mp4": "video/mp4", "webm": "video/webm", "avi": "video/x-msvideo"},
}


def media_format(kind: MediaKind, data: bytes | memoryview) -> str | None:
    """Return the format of a medium by its first bytes, ``wav`` or ``png`` for example; None: none of its kind."""
    found = _format(bytes(data[:12]))
    return found if found in _MEDIA_TYPES[kind] else None


def media_type(kind: MediaKind, format_name: str) -> str:
    """Return the media type of a format that ``media_format`` returned."""
    return _MEDIA_TYPES[kind][format_name]


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
