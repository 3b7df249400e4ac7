"""What a job may set for a picture. Light: the API checks it."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters

__all__ = ["PastelParameters"]

Side = Annotated[int, Field(ge=16, le=512, multiple_of=8, description="pixels")]


class PastelParameters(StageParameters):
    """The size of a picture, and how it is made."""

    width: Side = 64
    height: Side = 64
    steps: Annotated[int, Field(ge=1, le=1000)] = 10
    guidance_scale: Annotated[float, Field(ge=0, le=20, description="how far the text draws; 0: not at all")] = 3.0
