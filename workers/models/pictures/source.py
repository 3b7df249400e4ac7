"""Sources: the pictures that a job brings, scaled for a model and as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from omni_jobs.prompts.messages import picture_parts

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from workers.stages.types import StageInput


def decoded_sources(stage_input: StageInput[Any], *, keeps_opacity: bool = False) -> list[Image.Image]:
    """Return the pictures of a job's messages in their order, decoded behind the wall: RGB, upright.

    ``keeps_opacity``: one with transparent parts is RGBA, and not laid on white.

    Raises ConfigError for a stage without a wall, InvalidRequest or RequestTooLarge naming the picture that does not
    decode, and DecodersUnavailable.
    """
    pictures = []
    for field, number in picture_parts(stage_input.request["messages"]):
        with stage_input.wall_for(field) as wall:
            pictures.append(wall.decode_image(stage_input.media[number], keeps_opacity=keeps_opacity))
    return pictures


def scaled(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Return an RGB picture of this size, as Diffusers' ``VaeImageProcessor`` scales it: by Lanczos' filter."""
    from PIL import Image

    return picture.resize((width, height), resample=Image.Resampling.LANCZOS)


def bytes_of(picture: Image.Image) -> torch.Tensor:
    """Return an RGB picture's pixels, uint8 [H, W, 3]."""
    import torch  # here alone, because stages without torch decode pictures, too

    return torch.from_numpy(np.array(picture))


def shades_of(pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels uint8 [H, W, 3] on the CPU as a VAE takes them: float32 [3, H, W], -1 to 1."""
    return 2.0 * (pixels.permute(2, 0, 1).float() / 255.0) - 1.0
