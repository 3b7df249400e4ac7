"""What a job may set for the stages without a model, a class for each input processor of the runner ``echo``."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator

from omni_jobs.pipelines.parameters import StageParameters

MOST_SOUND_S: Final = 600.0
"""The longest tone, in seconds."""

SIDE: Final = 512
"""The width and the height in pixels of a picture that names none and is made of none."""

LEAST_SIDE: Final = 64
MOST_SIDE: Final = 2048

_Delay = Annotated[float, Field(ge=0, le=3600, description="seconds that the work takes, evenly over its steps")]
_Side = Annotated[int, Field(ge=LEAST_SIDE, le=MOST_SIDE)]


class EchoParameters(StageParameters):
    """Parameters of an echo stage, which has no model: it waits ``delay_s``, then emits ``payload_bytes``."""

    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    payload_bytes: Annotated[int, Field(ge=0, le=1 << 30)] = 0


class AnswerParameters(StageParameters):
    """Parameters of a stage that answers with the text of the request and with what its media hold.

    ``language`` to ``subtitles`` have the names of Whisper's. The last four change nothing, because no word is drawn at
    random; they are taken, because many clients send them with every request.
    """

    delay_s: _Delay = 0.0
    max_tokens: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="the words after which the answer is cut; null: none")
    ] = None
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(max_length=16, strict=False, description="the answer ends before the first of these"),
    ] = ()
    language: Annotated[
        str | None, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$", description="what the transcripts say")
    ] = None
    words: Annotated[bool, Field(description="whether the transcripts say when each word begins and ends")] = False
    subtitles: Annotated[
        tuple[Literal["srt", "vtt"], ...],
        Field(max_length=2, strict=False, description="files of what was heard: SubRip, WebVTT"),
    ] = ()
    temperature: Annotated[float | None, Field(ge=0, le=2, description="without effect")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="without effect")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2, description="without effect")] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2, description="without effect")] = None

    @field_validator("subtitles")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a format twice")
        return value


class ToneParameters(StageParameters):
    """Parameters of a stage that makes a tone: as long as the text, as high as the voice."""

    delay_s: _Delay = 0.0
    seconds: Annotated[
        float | None, Field(ge=0.1, le=MOST_SOUND_S, description="null: a twentieth of one for each character of text")
    ] = None
    frequency: Annotated[float | None, Field(ge=20, le=10_000, description="Hz; null: that of the voice")] = None
    speed: Annotated[float, Field(ge=0.25, le=4, description="2: half as long for the same text")] = 1.0


class _StepParameters(StageParameters):
    delay_s: _Delay = 0.0
    steps: Annotated[int, Field(ge=1, le=200, description="after each of which there is a preview")] = 8


class BarsParameters(_StepParameters):
    """Parameters of a stage that makes a picture: of colour bars, or of the request's pictures."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = {"pixels": ("width", "height")}
    work: ClassVar[Mapping[str, int]] = {"steps": 8, "pixels": SIDE * SIDE}

    width: Annotated[_Side | None, Field(description="pixels; null: that of the first picture, or 512")] = None
    height: Annotated[_Side | None, Field(description="pixels; null: that of the first picture, or 512")] = None

    @property
    def pixels(self) -> int | None:
        """The pixels of the picture; None: up to the request's."""
        return None if self.width is None or self.height is None else self.width * self.height


class MovingBarsParameters(_StepParameters):
    """Parameters of a stage that makes a video: of colour bars that move, or of the request's first picture."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "frames": ("seconds", "fps"),
        "video_pixels": ("width", "height", "seconds", "fps"),
    }
    work: ClassVar[Mapping[str, int]] = {"steps": 8, "pixels": 640 * 360, "frames": 32}

    width: Annotated[_Side, Field(description="pixels")] = 640
    height: Annotated[_Side, Field(description="pixels")] = 360
    seconds: Annotated[float, Field(ge=0.1, le=60)] = 4.0
    fps: Annotated[int, Field(ge=1, le=60, description="frames a second")] = 8

    @property
    def pixels(self) -> int:
        """The pixels of a frame."""
        return self.width * self.height

    @property
    def frames(self) -> int:
        """The frames of the video."""
        return max(1, round(self.seconds * self.fps))

    @property
    def video_pixels(self) -> int:
        """The pixels of all frames, of which each takes three bytes of memory until the video is encoded."""
        return self.pixels * self.frames
