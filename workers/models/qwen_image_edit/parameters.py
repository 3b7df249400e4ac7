"""What a job may set for the stages of Qwen-Image-Edit."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters
from workers.models.qwen_image.parameters import SIDES, DenoiseParameters
from workers.models.qwen_image.size import Size
from workers.models.qwen_image_edit.sizes import MULTIPLE, SOURCE_PIXELS


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


class EditParameters(StageParameters):
    """Parameters of the denoising of an edit: those of Qwen-Image's, but the size may be left to the picture."""

    steps: Annotated[int, Field(ge=1, le=200, description="steps from noise to the picture")] = 50
    true_cfg_scale: Annotated[
        float,
        Field(
            ge=1,
            le=20,
            description="how far from the negative prompt; 1: the negative prompt is not used, which halves the work",
        ),
    ] = 4.0
    width: Annotated[
        Annotated[int, SIDES] | None,
        Field(description="pixels, a multiple of 16; null: that of the last picture at 1024 x 1024 pixels"),
    ] = None
    height: Annotated[
        Annotated[int, SIDES] | None,
        Field(description="pixels, a multiple of 16; null: that of the last picture at 1024 x 1024 pixels"),
    ] = None

    def sized(self, default: Size) -> DenoiseParameters:
        """Return the denoising's parameters; sides that are not given are those of ``default``."""
        return DenoiseParameters(
            steps=self.steps,
            true_cfg_scale=self.true_cfg_scale,
            width=default.width if self.width is None else self.width,
            height=default.height if self.height is None else self.height,
        )
