"""What a job may set for the stages of GLM-Image."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters
from workers.models.glm_image.grids import SIDES
from workers.runners.lora_modules import LoraParameters

_Side = Annotated[
    Annotated[int, SIDES] | None,
    Field(description="of the picture, in pixels: a multiple of 32; null: the first source picture's, or 1024"),
]


class GenerateParameters(StageParameters):
    """Parameters of the stage that writes the image tokens: the picture's size, and how tokens are sampled."""

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = {"pixels": ("width", "height")}
    work: ClassVar[Mapping[str, int]] = {"pixels": 1024 * 1024}

    width: _Side = None
    height: _Side = None
    temperature: Annotated[float, Field(ge=0, le=2, description="0: always the likeliest token")] = 0.9
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.75
    top_k: Annotated[int, Field(ge=0, le=100_000, description="0: all tokens")] = 0

    @property
    def pixels(self) -> int | None:
        """The pixels of the picture; None: up to its sources."""
        return None if self.width is None or self.height is None else self.width * self.height


class DenoiseParameters(LoraParameters):
    """Parameters of the stage that denoises the picture's latents."""

    work: ClassVar[Mapping[str, int]] = {"steps": 50}

    steps: Annotated[int, Field(ge=1, le=200)] = 50
    guidance_scale: Annotated[
        float, Field(ge=1, le=20, description="how far from a picture without the prompt; 1 halves a step's cost")
    ] = 1.5
