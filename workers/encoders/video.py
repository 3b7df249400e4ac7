"""``encode_video``: pixels as an MP4 or WebM file without sound.

mp4   H.264, yuv420p, its index in front, so that a player starts before it has the whole file (faststart). The codec
      takes even sizes alone: an odd one grows by a pixel, a copy of the last row or column, so that none is lost.
webm  VP9, yuv420p, of the size that the pixels have. The container's clock counts milliseconds.

Both say that their colours are those of BT.709, and both have a constant quality in place of a bit rate.
"""

from __future__ import annotations

import io
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from omni_jobs.errors import ModelError
from workers.encoders.flow_data import check_format, check_sides, tensor_of

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

_LOWEST_RATE, _HIGHEST_RATE = 0.1, 480.0  # frames a second
_DENOMINATOR = 1001  # of a frame rate; NTSC's are n / 1001
_LONGEST = 16_384  # pixels of a side; x264 refuses more
_THREADS = 2  # never by the number of cores, because x264's bytes depend on it


@dataclass(frozen=True, slots=True)
class _VideoFormat:
    """FFmpeg's muxer and encoder with their options, and the number to whose multiples both sides are rounded up."""

    muxer: str
    muxer_options: Mapping[str, str]
    codec: str
    codec_options: Mapping[str, str]
    multiple: int


_FORMATS: Mapping[str, _VideoFormat] = {
    # cpu-independent: x264's fast estimates of how far a block is reused differ from run to run.
    "mp4": _VideoFormat(
        "mp4",
        {"movflags": "+faststart"},
        "libx264",
        {"preset": "medium", "crf": "20", "x264-params": "cpu-independent=1"},
        multiple=2,
    ),
    "webm": _VideoFormat(
        "webm", {}, "libvpx-vp9", {"crf": "31", "b": "0", "deadline": "good", "cpu-used": "4"}, multiple=1
    ),
}


def encode_video(tensors: Mapping[str, NDArray[Any]], values: Mapping[str, Any], format: str) -> bytes:
    """Return pixels as the bytes of a video: mp4 or webm.

    ``tensors`` has ``pixels``: uint8 [F, H, W, 3], RGB. ``values`` has ``frame_rate``: frames a second, int or float.
    Beside the pixels and the file, memory is taken for the frames that the encoder looks ahead: some 50.

    Raises ModelError naming ``pixels`` or ``frame_rate`` for another type or shape, no pixels, a side of more than
    16,384 pixels, or a rate outside 0.1 … 480; ConfigError for another format.
    """
    check_format(format, _FORMATS)
    pixels = tensor_of(tensors, "pixels", np.uint8, "FHW3")
    check_sides(pixels, "pixels", format, _LONGEST)
    rate = _frame_rate(values)
    file = io.BytesIO()
    try:
        _write(pixels, rate, _FORMATS[format], file)
    except MemoryError:  # also FFmpeg's own
        raise
    except av.FFmpegError as error:
        raise ModelError(f"the pixels do not encode as {format}: {error.strerror or error}", field="pixels") from error
    return file.getvalue()


def _frame_rate(values: Mapping[str, Any]) -> Fraction:
    rate = values.get("frame_rate")
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise ModelError(f"the frame rate must be a number, not {reprlib.repr(rate)}", field="frame_rate")
    if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        wanted = f"between {_LOWEST_RATE:g} and {_HIGHEST_RATE:g} frames a second"
        raise ModelError(f"the frame rate must lie {wanted}, not {reprlib.repr(rate)}", field="frame_rate")
    return Fraction(rate).limit_denominator(_DENOMINATOR)


def _write(pixels: NDArray[Any], rate: Fraction, format: _VideoFormat, file: io.BytesIO) -> None:
    # Bit-exact: no version and no random number in the file.
    options = {"fflags": "+bitexact", **format.muxer_options}
    with av.open(file, "w", format=format.muxer, options=options, io_open=lambda *_: _Reader(file)) as container:
        stream = _stream(container, pixels, rate, format)
        for frame in _frames(pixels, rate, format.multiple):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _stream(container: OutputContainer, pixels: NDArray[Any], rate: Fraction, format: _VideoFormat) -> VideoStream:
    added = container.add_stream(format.codec, rate=rate, options={"flags": "+bitexact", **format.codec_options})
    stream = cast("VideoStream", added)
    codec = stream.codec_context
    codec.height, codec.width = (_rounded_up(side, format.multiple) for side in pixels.shape[1:3])
    codec.pix_fmt = "yuv420p"
    codec.thread_count = _THREADS
    codec.colorspace = Colorspace.ITU709
    codec.color_primaries = ColorPrimaries.BT709
    codec.color_trc = ColorTrc.BT709
    codec.color_range = ColorRange.MPEG
    return stream


def _rounded_up(side: int, multiple: int) -> int:
    return -(-side // multiple) * multiple


def _frames(pixels: NDArray[Any], rate: Fraction, multiple: int) -> Iterator[av.VideoFrame]:
    """Yield the frames in yuv420p, padded to sides that are multiples of ``multiple``."""
    height, width = pixels.shape[1:3]
    missing = ((0, _rounded_up(height, multiple) - height), (0, _rounded_up(width, multiple) - width), (0, 0))
    for index, picture in enumerate(pixels):
        padded = np.ascontiguousarray(np.pad(picture, missing, mode="edge"))
        frame = av.VideoFrame.from_ndarray(padded, format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
        frame.pts = index
        frame.time_base = 1 / rate
        yield frame


class _Reader(io.RawIOBase):
    """The file that FFmpeg writes, read from a position of its own, because it moves an MP4's index to the front."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        writing_at = self._file.tell()
        self._file.seek(self._position)
        data = self._file.read(size)
        self._file.seek(writing_at)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.getbuffer().nbytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position
