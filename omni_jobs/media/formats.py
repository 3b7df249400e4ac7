"""The formats of media, found in their first bytes, whatever anybody says about them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["audio", "image", "video"]


class MediaFormat(NamedTuple):
    """A format of media.

    name        as files of it end: ``wav``, ``m4a``
    media_type  ``audio/wav``
    demuxer     the one of FFmpeg that reads it; empty for a picture
    """

    name: str
    media_type: str
    demuxer: str = ""


KNOWN = {
    "audio": "WAV, RF64, W64, AIFF, CAF, AU, FLAC, MP3, AAC, M4A, MP4, 3GP, WebM, Matroska, Ogg, AMR, AVI or MPEG-TS",
    "image": "PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP",
    "video": "MP4, QuickTime, 3GP, WebM, Matroska, AVI or MPEG-TS",
}
"""What each kind may be, as errors name it."""

_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_EBML = b"\x1a\x45\xdf\xa3"
_FIRST_BOXES = frozenset((b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"skip", b"free", b"pnot"))
_WAV = MediaFormat("wav", "audio/wav", "wav")
_FLAC = MediaFormat("flac", "audio/flac", "flac")
_AAC = MediaFormat("aac", "audio/aac", "aac")
_MP3 = MediaFormat("mp3", "audio/mpeg", "mp3")
_AU = MediaFormat("au", "audio/basic", "au")
_SOUNDS = (
    (b"fLaC", _FLAC),
    (b"OggS", MediaFormat("ogg", "audio/ogg", "ogg")),
    (b"RF64", _WAV),
    (b"BW64", _WAV),
    (_W64, MediaFormat("w64", "audio/x-w64", "w64")),
    (b"caff", MediaFormat("caf", "audio/x-caf", "caf")),
    (b".snd", _AU),
    (b"dns.", _AU),
    (_EBML, MediaFormat("webm", "audio/webm", "matroska")),
    (b"#!AMR\n", MediaFormat("amr", "audio/amr", "amr")),
    (b"#!AMR-WB\n", MediaFormat("awb", "audio/amr-wb", "amr")),
)
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", MediaFormat("png", "image/png")),
    (b"\xff\xd8\xff", MediaFormat("jpeg", "image/jpeg")),
    (b"GIF8", MediaFormat("gif", "image/gif")),
    (b"BM", MediaFormat("bmp", "image/bmp")),
    (b"II*\0", MediaFormat("tiff", "image/tiff")),
    (b"MM\0*", MediaFormat("tiff", "image/tiff")),
    (b"II+\0", MediaFormat("tiff", "image/tiff")),
    (b"MM\0+", MediaFormat("tiff", "image/tiff")),
)
_TS_PACKET, _TS_PACKETS, _TS_SYNC = 188, 3, b"G"
_ID3_HEAD = 10  # bytes of an ID3 tag before its content


def format_of(kind: Kind, data: bytes | memoryview) -> MediaFormat | None:
    """Return the format of a medium of this kind by its first bytes; None for bytes of no known format of the kind."""
    head = bytes(data[:16])
    if kind == "image":
        return _picture(head)
    if kind == "video":
        return _video(head, data)
    return _sound(head, data)


def _starting(head: bytes, known: tuple[tuple[bytes, MediaFormat], ...]) -> MediaFormat | None:
    return next((format for begin, format in known if head.startswith(begin)), None)


def _picture(head: bytes) -> MediaFormat | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return MediaFormat("webp", "image/webp")
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return MediaFormat("avif", "image/avif")
    if head[4:12] in (b"ftypmif1", b"ftypmiaf"):  # the brand stands further on; what is no AVIF does not decode
        return MediaFormat("avif", "image/avif")
    return _starting(head, _PICTURES)


def _video(head: bytes, data: bytes | memoryview) -> MediaFormat | None:
    if head[4:8] in _FIRST_BOXES:
        if head[8:11] == b"3gp":
            return MediaFormat("3gp", "video/3gpp", "mp4")
        return MediaFormat("mp4", "video/mp4", "mp4")
    if head[:4] == _EBML:
        return MediaFormat("webm", "video/webm", "matroska")
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return MediaFormat("avi", "video/x-msvideo", "avi")
    return MediaFormat("ts", "video/mp2t", "mpegts") if _is_ts(data) else None


def _is_ts(data: bytes | memoryview) -> bool:
    """Return whether packets of an MPEG transport stream stand here: each begins with the same byte."""
    begins = bytes(data[: _TS_PACKETS * _TS_PACKET : _TS_PACKET])
    return begins == _TS_SYNC * _TS_PACKETS


def _sound(head: bytes, data: bytes | memoryview) -> MediaFormat | None:
    if head[:4] in (b"RIFF", b"RIFX"):
        if head[8:12] == b"AVI ":
            return MediaFormat("avi", "video/x-msvideo", "avi")
        return _WAV if head[8:12] == b"WAVE" else None
    if head[:4] == b"FORM":
        return MediaFormat("aiff", "audio/aiff", "aiff") if head[8:12] in (b"AIFF", b"AIFC") else None
    if head[4:8] in _FIRST_BOXES:
        if head[8:11] == b"3gp":
            return MediaFormat("3gp", "audio/3gpp", "mp4")
        return MediaFormat("m4a", "audio/mp4", "mp4")
    if head[:3] == b"ID3":
        return _behind_id3(data)
    if _is_ts(data):
        return MediaFormat("ts", "video/mp2t", "mpegts")
    return _starting(head, _SOUNDS) or _synchronized(head)


def _synchronized(head: bytes) -> MediaFormat | None:
    """Return the format of a stream of frames, each of which begins with MPEG's sync word; AAC has no layer."""
    if len(head) < 2 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    return _AAC if head[1] & 0xF6 == 0xF0 else _MP3


def _behind_id3(data: bytes | memoryview) -> MediaFormat:
    """Return the format of a sound behind its ID3 tags: MP3, unless it is another that has such tags too."""
    at = behind_id3(data, 0)
    head = bytes(data[at : at + 4])
    if head == b"fLaC":
        return _FLAC
    return _synchronized(head) or _MP3


def behind_id3(data: bytes | memoryview, at: int) -> int:
    """Return the index behind the ID3 tags that stand at an index; the index itself where there are none."""
    while bytes(data[at : at + 3]) == b"ID3" and at + _ID3_HEAD <= len(data):
        size = 0
        for byte in data[at + 6 : at + _ID3_HEAD]:
            size = size << 7 | byte & 0x7F
        at += _ID3_HEAD + size
    return at
