"""The sizes of an accepted medium: enough to count its tokens without decoding it again."""

from dataclasses import dataclass

SAMPLING_RATE = 16_000  # Hz, of Whisper's features and of every model that takes them


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """An accepted clip; ``samples`` counts them after mixing to mono and resampling to ``sampling_rate`` Hz."""

    media_type: str
    samples: int
    sampling_rate: int = SAMPLING_RATE

    @property
    def duration_s(self) -> float:
        return self.samples / self.sampling_rate


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An accepted image; width and height in pixels after it is turned upright."""

    media_type: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """An accepted clip as a model gets it: ``frames`` sampled frames of ``width`` × ``height`` pixels, upright."""

    media_type: str
    frames: int
    width: int
    height: int
    duration_s: float


MediaInfo = AudioInfo | ImageInfo | VideoInfo
