"""Decode video with FFmpeg to the few frames that a model sees, without sound.

Frames are sampled by time, at equal distances over the whole video, because the frame rate may vary. At a constant
rate they are the frames that Transformers' ``Qwen2VLVideoProcessor.sample_frames`` picks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import av
import numpy as np
from av.sidedata.sidedata import SideData
from av.video.stream import VideoStream
from PIL import Image

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.ffmpeg import check_codec, opened_container
from omni_jobs.media.formats import KNOWN, MediaFormat, format_of
from omni_jobs.media.image import check_size
from omni_jobs.media.info import VideoInfo
from omni_jobs.media.mp4_index import check_index

if TYPE_CHECKING:
    from av.container import InputContainer

    from omni_jobs.media.media_limits import MediaLimits

# The frames that Qwen2.5-Omni sees. Frames of more pixels are scaled down while decoding, to the size that the model's
# processor would choose.
_FPS = 2.0
_MIN_FRAMES, MAX_FRAMES = 4, 768
_FRAMES_MULTIPLE = 2  # the model takes frames in pairs
MAX_FRAME_PIXELS = 768 * 28 * 28
_SIDE_MULTIPLE = 28
_UNKNOWN_FRAMES = 1 << 30  # what an AVI states that was written to a pipe


def header_of_video(data: bytes | memoryview, limits: MediaLimits) -> VideoInfo:
    """Return a video's VideoInfo by its index and packets: its frames as a model gets them, not yet turned.

    Decode none. Raise as ``decode_video`` does, but not for what only a decoded frame shows.
    """
    with _opened(data, limits) as (_, stream, timing):
        size = _fitted(stream.width, stream.height)
        return VideoInfo(_format(data).media_type, timing.sampled, *size, timing.duration_s)


def probe_video(data: bytes | memoryview, limits: MediaLimits) -> VideoInfo:
    """Return a video's VideoInfo by its index, packets and first frame, upright. Raise as ``decode_video`` does."""
    with _opened(data, limits) as (container, stream, timing):
        size = _fitted(*_first_size(container, stream, limits))
        return VideoInfo(_format(data).media_type, timing.sampled, *size, timing.duration_s)


def decode_video(
    data: bytes | memoryview,
    limits: MediaLimits,
    *,
    allocate: Callable[[tuple[int, ...]], np.ndarray[Any, Any]] = lambda shape: np.empty(shape, np.uint8),
) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Return a video's sampled frames, upright and scaled down, uint8 [F, H, W, 3] RGB with even F, and their metadata.

    The metadata is the one that vLLM takes: the fields of Transformers' ``VideoMetadata`` (``fps``, ``duration`` in
    seconds and ``total_num_frames`` of the video, ``frames_indices`` into it) and ``do_sample_frames``. ``allocate``
    returns an array of the shape that it gets, for a caller that provides the memory. Raise
    InvalidRequest for a video that does not decode, RequestTooLarge for one beyond ``limits``.
    """
    with _opened(data, limits) as (container, stream, timing):
        indices, frames = _picked(container, stream, timing, limits, allocate)
    metadata = {
        "total_num_frames": timing.frames,
        "fps": timing.frames / timing.duration_s,
        "width": frames.shape[2],
        "height": frames.shape[1],
        "duration": timing.duration_s,
        "video_backend": "pyav",
        "frames_indices": indices,
        "do_sample_frames": False,
    }
    return frames, metadata


def _format(data: bytes | memoryview) -> MediaFormat:
    format = format_of("video", data)
    if format is None:
        raise InvalidRequest(f"not a video this server knows: {KNOWN['video']}")
    return format


@contextmanager
def _opened(data: bytes | memoryview, limits: MediaLimits) -> Iterator[tuple[InputContainer, VideoStream, _Timing]]:
    demuxer = _format(data).demuxer
    if demuxer == "mp4":
        check_index(data, limits.max_video_frames)
    with opened_container("video", data, demuxer) as container:
        if not container.streams.video:
            raise InvalidRequest("the video has no picture track")
        stream = container.streams.video[0]
        check_codec("video", stream)
        check_size("video", stream.width, stream.height, limits.max_image_pixels)
        yield container, stream, _Timing.of(container, stream, limits)


@dataclass(frozen=True, slots=True)
class _Timing:
    """A video's number of frames and the time they take; ``start`` and ``length`` in units of its time base."""

    start: int
    length: int
    frames: int
    duration_s: float

    @property
    def sampled(self) -> int:
        """The number of frames that a model sees; 2 for a video of a single frame."""
        wanted = min(max(self.duration_s * _FPS, _MIN_FRAMES), MAX_FRAMES, self.frames)
        return max(math.floor(wanted / _FRAMES_MULTIPLE), 1) * _FRAMES_MULTIPLE

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream, limits: MediaLimits) -> Self:
        """Read the packets' time stamps, because headers may be wrong or missing; then seek to the start.

        Raise InvalidRequest for a clip that is cut off or empty, RequestTooLarge for one beyond ``limits``.
        """
        shown: list[int] = []
        first_duration = packets = 0
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise InvalidRequest("the video is cut off")
            packets += packet.size > 0
            if packet.pts is not None and packet.size and not packet.is_discard:  # an edit leaves those out
                first_duration = first_duration if shown else packet.duration or 0
                shown.append(packet.pts)
                if len(shown) > limits.max_video_frames:
                    raise RequestTooLarge(
                        f"the video has more than {limits.max_video_frames} frames (max_video_frames)"
                    )
        if not shown or stream.time_base is None:
            raise InvalidRequest("the video has no frames")
        stated = _stated_frames(container, stream)
        if packets < stated:
            raise InvalidRequest(f"the video is cut off: {packets} of its {stated} frames are there")
        start, end = min(shown), max(shown)
        step = round((end - start) / (len(shown) - 1)) if len(shown) > 1 else first_duration
        length = end - start + max(step, 1)
        duration_s = float(length * stream.time_base)
        if duration_s > limits.max_video_s:
            raise RequestTooLarge(
                f"the video lasts {duration_s:.1f} s; at most {limits.max_video_s:g} s are taken (max_video_s)"
            )
        container.seek(0)
        return cls(start, length, len(shown), duration_s)


def _stated_frames(container: InputContainer, stream: VideoStream) -> int:
    """Return the frames that a video's header promises, those that its edits leave out not counted; 0 for none."""
    if "mp4" in container.format.name:
        return len(stream.index_entries)
    return stream.frames if stream.frames < _UNKNOWN_FRAMES else 0


def _first_size(container: InputContainer, stream: VideoStream, limits: MediaLimits) -> tuple[int, int]:
    for frame in container.decode(stream):
        check_size("video", frame.width, frame.height, limits.max_image_pixels)  # headers may be wrong
        height, width = _turned(frame).shape[:2]
        return width, height
    raise InvalidRequest("the video has no frame that decodes")


def _turned(frame: av.VideoFrame) -> np.ndarray[Any, Any]:
    """Return a frame's pixels as they are shown: turned by right angles and mirrored, as its display matrix says."""
    pixels = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(matrix, SideData):
        return pixels
    # The matrix moves a pixel of row y and column x to column a·x + c·y and row b·x + d·y.
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels = pixels.transpose(1, 0, 2)
        a, d = c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]


def _fitted(width: int, height: int) -> tuple[int, int]:
    """Return the width and height of the decoded frames of a video of this width and height."""
    if width * height <= MAX_FRAME_PIXELS:
        return width, height
    shrink = math.sqrt(width * height / MAX_FRAME_PIXELS)
    fitted = (max(1, math.floor(side / shrink / _SIDE_MULTIPLE)) * _SIDE_MULTIPLE for side in (width, height))
    return next(fitted), next(fitted)


def _picked(
    container: InputContainer,
    stream: VideoStream,
    timing: _Timing,
    limits: MediaLimits,
    allocate: Callable[[tuple[int, ...]], np.ndarray[Any, Any]],
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Return the frames shown at F moments: their indices in the video, and uint8 [F, H, W, 3]."""
    count = timing.sampled
    indices: list[int] = []
    frames: np.ndarray[Any, Any] | None = None

    def keep(index: int, frame: av.VideoFrame) -> None:
        nonlocal frames
        pixels = _turned(frame)
        if frames is None:
            width, height = _fitted(pixels.shape[1], pixels.shape[0])
            frames = allocate((count, height, width, 3))
        if pixels.shape != frames.shape[1:]:
            size = (frames.shape[2], frames.shape[1])
            pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
        frames[len(indices)] = pixels
        indices.append(index)

    shown: tuple[int, av.VideoFrame] | None = None
    for index, frame in enumerate(container.decode(stream)):
        check_size("video", frame.width, frame.height, limits.max_image_pixels)
        if frame.pts is None:
            continue
        # Until this frame's time stamp the previous frame was shown.
        while shown is not None and len(indices) < count:
            if len(indices) * timing.length >= (frame.pts - timing.start) * count:
                break
            keep(*shown)
        if len(indices) == count:
            break
        shown = index, frame
    while shown is not None and len(indices) < count:
        keep(*shown)
    if frames is None:
        raise InvalidRequest("the video has no frame that decodes")
    return indices, frames
