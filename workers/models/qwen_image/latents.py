"""Latents: what the transformer denoises and the VAE decodes, as tokens and as a picture.

A token stands for a patch of 2 x 2 latents of 16 channels, so for 16 x 16 pixels. Packed latents are [N, 64], the
tokens of a picture by rows; unpacked ones are [16, H / 8, W / 8].
"""

from __future__ import annotations

from typing import Final

import torch

from workers.models.qwen_image.size import Size

CHANNELS: Final = 16
TOKEN: Final = CHANNELS * 4
"""The width of a packed token: a patch of 2 x 2 latents."""


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
