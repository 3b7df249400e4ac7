"""What a job may set for the encoding of the pictures that it edits."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters
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
