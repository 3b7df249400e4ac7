"""``AcousticParameters`` and ``VocoderParameters``: what a job may set for the two stages that speak."""

from typing import Annotated

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters


class AcousticParameters(StageParameters):
    """Parameters of the stage that makes acoustic features of a text."""

    speed: Annotated[float, Field(ge=0.5, le=2, description="1: as the voice was trained; 2: twice as fast")] = 1.0


class VocoderParameters(StageParameters):
    """Parameters of the stage that makes sound of acoustic features."""

    pause_s: Annotated[
        float, Field(ge=0, le=5, description="silence between two sentences, beside the 0.7 s that the voice leaves")
    ] = 0.0
