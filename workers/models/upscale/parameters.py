"""``UpscaleParameters``: what a job may set for a stage that enlarges pictures."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from omni_jobs.pipelines.parameters import StageParameters
from workers.models.upscale.networks import NetworkName


class UpscaleParameters(StageParameters):
    """Parameters of a stage that enlarges pictures."""

    network: Annotated[
        NetworkName | None, Field(description="one of the stage's engine.networks; null: the first of them")
    ] = None
    faithful: Annotated[
        bool, Field(description="whether each pixel's colour is kept as the mean of the 4 x 4 pixels made of it")
    ] = True

    @field_validator("network")
    @classmethod
    def _listed(cls, value: NetworkName | None, info: ValidationInfo) -> NetworkName | None:
        """Check the name against the stage's engine settings, where these are the validation's context."""
        if value is None or info.context is None:
            return value
        listed = getattr(info.context, "networks", ())
        if value not in listed:
            raise ValueError(f"the stage lists no network {value!r}; it lists {', '.join(listed) or 'none'}")
        return value
