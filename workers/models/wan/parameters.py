"""What a job may set for the stages of Wan."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, WithJsonSchema

from omni_jobs.pipelines.parameters import StageParameters
from workers.models.pictures.sides import Sides
from workers.runners.lora_modules import LoraParameters
from workers.runners.pooling.parameters import LONGEST_NEGATIVE_PROMPT

PATCH: Final = 16
"""Pixels to a side of the patch that one latent token stands for: 8 to a latent, 2 latents to a patch."""

CHUNK: Final = 4
"""Frames to a latent frame. The first latent frame has one alone."""

FRAME_RATE: Final = 16
"""Frames a second of the videos that the model was trained on."""

MAX_SIDE: Final = 1280
"""The longest side in pixels. The model was trained on videos of up to 1280 x 720."""

LEAST_FRAMES: Final = 5
"""The frames of the shortest video."""

MOST_FRAMES: Final = 161
"""The frames of the longest video."""

FRAMES: Final = 81
"""The frames of a video where a job names no length, as of those that the model was trained on."""

WIDTH: Final = 832
"""Pixels of a frame's width where a job names no size."""

HEIGHT: Final = 480
"""Pixels of a frame's height where a job names no size."""

PIXELS: Final = WIDTH * HEIGHT
"""The area of a frame where a job names no size."""

SIDES: Final = Sides(PATCH, PATCH, MAX_SIDE)
"""What a width or height may be, in pixels."""


def nearest_frames(frames: float) -> int:
    """Return the nearest number of frames that a video may have."""
    return min(max(round((frames - 1) / CHUNK) * CHUNK + 1, LEAST_FRAMES), MOST_FRAMES)


def _check_frames(frames: int) -> int:
    if frames != nearest_frames(frames):
        raise ValueError(
            f"must be a multiple of {CHUNK} and one more, from {LEAST_FRAMES} to {MOST_FRAMES}; "
            f"the nearest is {nearest_frames(frames)}"
        )
    return frames


_FRAMES_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "integer",
    "minimum": LEAST_FRAMES,
    "maximum": MOST_FRAMES,
    "description": f"frames of the video, at {FRAME_RATE} a second: a multiple of {CHUNK} and one more",
}

_QUANTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "pixels": ("width", "height"),
    "frames": ("num_frames", "seconds"),
    "video_pixels": ("width", "height", "num_frames", "seconds"),
}


class VideoLength(StageParameters):
    """How long a video is."""

    instead_of: ClassVar[Mapping[str, str]] = {"seconds": "num_frames"}

    num_frames: Annotated[int, AfterValidator(_check_frames), WithJsonSchema(dict(_FRAMES_SCHEMA))] = FRAMES
    seconds: Annotated[
        float | None,
        Field(
            ge=(LEAST_FRAMES - 1) / FRAME_RATE,
            le=(MOST_FRAMES - 1) / FRAME_RATE,
            description=f"of the video, at {FRAME_RATE} frames a second, in place of num_frames; null: num_frames says",
        ),
    ] = None

    @property
    def frames(self) -> int:
        """The frames of the video."""
        return self.num_frames if self.seconds is None else nearest_frames(self.seconds * FRAME_RATE + 1)


class VideoFrames(VideoLength):
    """How large and how long a video is."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = _QUANTITIES

    width: Annotated[int, SIDES, Field(description="pixels, a multiple of 16")] = WIDTH
    height: Annotated[int, SIDES, Field(description="pixels, a multiple of 16")] = HEIGHT

    @property
    def pixels(self) -> int:
        """The pixels of a frame."""
        return self.width * self.height

    @property
    def video_pixels(self) -> int:
        """The pixels of all frames, of which each takes three bytes of memory until the video is encoded."""
        return self.pixels * self.frames


_OpenSide = Annotated[
    Annotated[int, SIDES] | None,
    Field(description="pixels, a multiple of 16; null: that of the picture at 832 x 480 pixels"),
]


class BeginParameters(VideoLength):
    """What a job may set for the begin of a video: the video's size, which may be left to the picture."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = _QUANTITIES
    work: ClassVar[Mapping[str, int]] = {"pixels": PIXELS, "frames": FRAMES}

    width: _OpenSide = None
    height: _OpenSide = None

    @property
    def pixels(self) -> int | None:
        """The pixels of a frame; None: up to the picture."""
        return None if self.width is None or self.height is None else self.width * self.height

    @property
    def video_pixels(self) -> int | None:
        """The pixels of all frames; None: up to the picture."""
        return None if self.pixels is None else self.pixels * self.frames


_Scale = Annotated[float, Field(ge=1, le=20)]


class VideoSteps(LoraParameters):
    """Parameters of a denoising, which solves an ODE from noise to latents by the checkpoint's UniPC."""

    steps: Annotated[int, Field(ge=1, le=200, description="steps from noise to the video")] = 40
    guidance_scale: Annotated[
        _Scale,
        Field(
            description="how far from the negative prompt in the first steps; 1: the negative prompt is not used in "
            "any, which halves the work"
        ),
    ] = 4.0
    guidance_scale_2: Annotated[
        _Scale, Field(description="the same in the last steps, which the second transformer takes")
    ] = 3.0


class AnimateParameters(VideoSteps):
    """What a job may set for the steps of a video that begins with a picture, whose size is known by then."""

    work: ClassVar[Mapping[str, int]] = {"steps": 40}


class FilmParameters(VideoFrames, VideoSteps):
    """What a job may set for text-to-video: size and length, beside steps and guidance."""

    work: ClassVar[Mapping[str, int]] = {"steps": 40, "pixels": PIXELS, "frames": FRAMES}


class PlaybackParameters(StageParameters):
    """Parameters of the stage that makes the frames."""

    fps: Annotated[
        float,
        Field(
            ge=1,
            le=60,
            description="frames a second at which the video is played, which changes how long its frames last",
        ),
    ] = float(FRAME_RATE)


class TextParameters(StageParameters):
    """Parameters of the stage that encodes the texts."""

    negative_prompt: Annotated[
        str | None,
        Field(max_length=LONGEST_NEGATIVE_PROMPT, description="what the video shall not show; null: no guidance"),
    ] = ""
