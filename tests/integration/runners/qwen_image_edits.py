"""Pictures to edit, and prompts for Qwen-Image-Edit's denoising that are made of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.qwen_image_prompts import prompt, run
from workers.models.pictures.source import bytes_of, scaled
from workers.models.qwen_image.size import Size, size_of_area
from workers.models.qwen_image.source_encoder import SourceEncoder
from workers.runners.diffusion.prompt import DiffusionPrompt


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an RGB picture: colours that change over it, with noise."""
    choice = np.random.default_rng(seed)
    columns, rows = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    shades = np.stack([columns, rows, (columns + rows) / 2], -1) * 200 + choice.uniform(0, 55, (height, width, 3))
    return Image.fromarray(shades.astype(np.uint8))


def edit_prompt(
    encoder: SourceEncoder, pictures: Sequence[Image.Image], *given: Any, pixels: int = 64 * 64, **parameters: Any
) -> DiffusionPrompt:
    """Return a denoising's prompt of pictures that are scaled to ``pixels``; the rest is as ``prompt`` takes it."""
    sizes = [size_of_area(pixels, Size(each.height, each.width)) for each in pictures]
    tensors = {"pictures": [bytes_of(scaled(each, *size)) for each, size in zip(pictures, sizes, strict=True)]}
    (output,) = run(encoder, [DiffusionPrompt(tensors, {}, StageParameters(), 0)])
    made = prompt(*given, **parameters)
    return replace(made, tensors={**made.tensors, **output.tensors}, values=output.values)
