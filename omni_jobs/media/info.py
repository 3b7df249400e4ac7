"""The sizes of a medium: enough to count its tokens without decoding it again."""

from dataclasses import dataclass

SAMPLING_RATE = 16_000  # Hz, of Whisper's features and of every model that takes them


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The size of a sound: ``samples`` is its number of samples once it is mono and has ``SAMPLING_RATE``."""

    media_type: str
    samples: int


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The size of an image, in pixels: upright, or as stored if only its header was read."""

    media_type: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """The size of a video as a model gets it: ``frames`` sampled frames, upright unless only the header was read."""

    media_type: str
    frames: int
    width: int
    height: int
    duration_s: float


MediaInfo = AudioInfo | ImageInfo | VideoInfo
