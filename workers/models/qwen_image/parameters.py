"""What a job may set for the stages of Qwen-Image."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from omni_jobs.pipelines.parameters import StageParameters

PATCH: Final = 16
"""Pixels to a side of the patch that one latent token stands for: 8 to a latent, 2 latents to a patch."""

MAX_SIDE: Final = 2048
"""The longest side in pixels. The model was trained on pictures of up to 1664."""


def _check_side(pixels: int) -> int:
    """Raise ValueError, which names the nearest lengths, for one that the model cannot draw."""
    if PATCH <= pixels <= MAX_SIDE and pixels % PATCH == 0:
        return pixels
    below = min(max(pixels // PATCH * PATCH, PATCH), MAX_SIDE)
    above = min(below + PATCH, MAX_SIDE) if pixels > PATCH else below
    nearest = f"the nearest are {below} and {above}" if below != above else f"the nearest is {below}"
    raise ValueError(f"must be a multiple of {PATCH} from {PATCH} to {MAX_SIDE}; {nearest}")


_Side = Annotated[
    int,
    AfterValidator(_check_side),
    Field(json_schema_extra={"minimum": PATCH, "maximum": MAX_SIDE, "multipleOf": PATCH}),
]


class DenoiseParameters(StageParameters):
    """Parameters of the denoising, which solves an ODE from noise to latents by Euler's method."""

    steps: Annotated[int, Field(ge=1, le=200, description="steps from noise to the picture")] = 50
    true_cfg_scale: Annotated[
        float,
        Field(
            ge=1,
            le=20,
            description="how far from the negative prompt; 1: the negative prompt is not used, which halves the work",
        ),
    ] = 4.0
    width: Annotated[_Side, Field(description="pixels, a multiple of 16")] = 1328
    height: Annotated[_Side, Field(description="pixels, a multiple of 16")] = 1328
