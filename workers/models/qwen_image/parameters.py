"""What a job may set for the stages of Qwen-Image."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters
from workers.models.pictures.sides import Sides
from workers.runners.lora_modules import LoraParameters

PATCH: Final = 16
"""Pixels to a side of the patch that one latent token stands for: 8 to a latent, 2 latents to a patch."""

MAX_SIDE: Final = 2048
"""The longest side in pixels. The model was trained on pictures of up to 1664."""

MOST_SOURCES: Final = 3
"""The most pictures of an edit, because Qwen-Image-Edit-Plus was trained on up to three."""

MULTIPLE: Final = 32
"""Pixels: the sides to which pictures of an edit are scaled are multiples of it."""

SOURCE_PIXELS: Final = 1024 * 1024
"""The area to which a picture is scaled for the transformer, and that of an edit that names no size."""

SIDES: Final = Sides(PATCH, PATCH, MAX_SIDE)
"""What a width or height may be, in pixels."""


class StepParameters(LoraParameters):
    """Parameters of the steps of a denoising, which solves an ODE from noise to latents by Euler's method."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = {"pixels": ("width", "height")}
    work: ClassVar[Mapping[str, int]] = {"steps": 50, "pixels": 1024 * 1024}

    steps: Annotated[int, Field(ge=1, le=200, description="steps from noise to the picture")] = 50
    true_cfg_scale: Annotated[
        float,
        Field(
            ge=1,
            le=20,
            description="how far from the negative prompt; 1: the negative prompt is not used, which halves the work",
        ),
    ] = 4.0


class DrawParameters(StepParameters):
    """What a job may set for text-to-image: width and height, beside steps and guidance."""

    width: Annotated[int, SIDES, Field(description="pixels, a multiple of 16")] = 1328
    height: Annotated[int, SIDES, Field(description="pixels, a multiple of 16")] = 1328

    @property
    def pixels(self) -> int:
        """The pixels of the picture."""
        return self.width * self.height


_EditSide = Annotated[
    Annotated[int, SIDES] | None,
    Field(description="pixels, a multiple of 16; null: that of the last picture at 1024 x 1024 pixels"),
]


class EditParameters(StepParameters):
    """What a job may set for an edit: beside steps and guidance the size, which may be left to the pictures."""

    width: _EditSide = None
    height: _EditSide = None

    @property
    def pixels(self) -> int | None:
        """The pixels of the picture; None: up to its sources."""
        return None if self.width is None or self.height is None else self.width * self.height


class SourcesParameters(StageParameters):
    """Parameters of the stage that encodes the pictures to edit."""

    pixels: Annotated[
        int,
        Field(
            ge=MULTIPLE**2,
            le=SOURCE_PIXELS,
            description="the area to which each picture is scaled; with fewer a step is quicker and sees less",
        ),
    ] = SOURCE_PIXELS
