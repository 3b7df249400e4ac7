"""Latents: what the transformer denoises and the VAE decodes, as tokens and as a picture.

A token stands for a patch of 2 x 2 latents of 16 channels, so for 16 x 16 pixels. Packed latents are [N, 64], the
tokens of a picture by rows; unpacked ones are [16, H / 8, W / 8].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.vae import finite_floats
from workers.models.qwen_image.family import CHANNELS, TOKEN
from workers.models.qwen_image.parameters import MOST_SOURCES, PATCH
from workers.models.qwen_image.size import Size
from workers.runners.diffusion.prompt import DiffusionPrompt

_LONGEST = 32_768  # pixels of a side; of more the transformer has no positions on either side of the middle


def noise(size: Size, seed: int) -> torch.Tensor:
    """Return packed noise float32 [N, 64] on the CPU.

    It is drawn on the CPU in float32, so that it depends on the seed alone. Diffusers draws the same, in float32 from a
    CPU generator of this seed.
    """
    rows, columns = size.grid
    generator = torch.Generator().manual_seed(seed)
    return pack(torch.randn(CHANNELS, 2 * rows, 2 * columns, generator=generator))


def pack(latents: torch.Tensor) -> torch.Tensor:
    """Return latents [16, H / 8, W / 8] as tokens [N, 64]."""
    channels, height, width = latents.shape
    patches = latents.view(channels, height // 2, 2, width // 2, 2).permute(1, 3, 0, 2, 4)
    return patches.reshape(-1, channels * 4)


def unpack(tokens: torch.Tensor, size: Size) -> torch.Tensor:
    """Return tokens [N, 64] as latents [16, H / 8, W / 8]."""
    rows, columns = size.grid
    patches = tokens.view(rows, columns, CHANNELS, 2, 2).permute(2, 0, 3, 1, 4)
    return patches.reshape(CHANNELS, rows * 2, columns * 2)


class Sources(NamedTuple):
    """The pictures of one edit, as the transformer sees them: clean tokens behind those of the target.

    tokens  [S, 64], those of all pictures in their order
    sizes   of each picture
    """

    tokens: torch.Tensor
    sizes: tuple[Size, ...]

    @classmethod
    def of(cls, prompt: DiffusionPrompt[Any]) -> Sources:
        """Return the sources of a prompt: a tensor ``source_tokens`` and a value ``source_sizes``.

        Raises ModelError naming the one that is missing, does not fit or is not finite.
        """
        sizes = _sizes(prompt.values.get("source_sizes"))
        due = sum(size.tokens for size in sizes), TOKEN
        tokens = prompt.tensors.get("source_tokens")
        return cls(finite_floats(tokens, "source_tokens", lambda shape: shape == due, str(list(due))), sizes)


def _sizes(sizes: object) -> tuple[Size, ...]:
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= MOST_SOURCES:
        raise ModelError(f"sizes of 1 to {MOST_SOURCES} pictures are due", field="source_sizes")
    for number, size in enumerate(sizes):
        sides = size if isinstance(size, list) and len(size) == 2 else [None]
        if any(type(side) is not int or side % PATCH or not PATCH <= side <= _LONGEST for side in sides):
            raise ModelError(f"{size!r:.40} are no sides of multiples of {PATCH}", field=f"source_sizes.{number}")
    return tuple(Size(*size) for size in sizes)
