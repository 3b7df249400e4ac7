"""Open media with FFmpeg, restricted to what the platform reads: one demuxer, listed decoders, no protocols."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import av

from omni_jobs.errors import InvalidRequest

if TYPE_CHECKING:
    from av.container import InputContainer

    from omni_jobs.media.formats import Kind

_VIDEO_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg", "h263"})
_AUDIO_CODECS = frozenset(
    {
        "aac", "alac", "amr_nb", "amr_wb", "flac", "mp3", "mp2", "opus", "vorbis", "speex", "ac3", "eac3",
        "gsm", "gsm_ms", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "adpcm_yamaha",
        "adpcm_g722", "adpcm_g726",
        "pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be",
        "pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_f64be", "pcm_alaw", "pcm_mulaw",
    }
)  # fmt: skip
CODECS: dict[Kind, frozenset[str]] = {"video": _VIDEO_CODECS, "audio": _AUDIO_CODECS}
# FFmpeg calls some decoders by other names than what they decode.
_OTHER_NAMES = {"video": ("libdav1d",), "audio": ("amrnb", "amrwb", "mp3float", "mp2float", "g722", "g726")}
_MOST_STREAMS = 64


@contextmanager
def opened_container(kind: Kind, data: bytes | memoryview, demuxer: str) -> Iterator[InputContainer]:
    """Open a medium for a block; raise FFmpeg's errors in the block as InvalidRequest, but for MemoryError.

    FFmpeg reads it with this demuxer alone, because others read playlists, which name other files; it opens no
    file and no connection that the medium names, and looks into streams with the decoders of ``CODECS`` alone.
    """
    options = {
        "format_whitelist": demuxer,
        "protocol_whitelist": "",
        "codec_whitelist": ",".join(sorted((*CODECS[kind], *_OTHER_NAMES[kind]))),
        "max_streams": str(_MOST_STREAMS),
    }
    try:
        with av.open(
            io.BytesIO(data), mode="r", format=demuxer, metadata_errors="replace", options=options
        ) as container:
            yield container
    except MemoryError:  # also FFmpeg's own: this process has reached its memory limit
        raise
    except av.FFmpegError as error:
        raise InvalidRequest(f"the {kind} does not decode: {error.strerror or error}") from None


def codec_of(stream: Any) -> str:
    """Return the name of what a stream is coded with, ``aac`` or ``h264``; ``unknown`` where FFmpeg has no decoder."""
    context = stream.codec_context
    return str(context.codec.canonical_name) if context else "unknown"


def check_codec(kind: Kind, stream: Any) -> None:
    """Raise InvalidRequest for a stream of a codec that is not of ``CODECS``."""
    codec = codec_of(stream)
    if codec not in CODECS[kind]:
        raise InvalidRequest(f"the {kind}'s codec is {codec}; known: {', '.join(sorted(CODECS[kind]))}")
