"""``Colours``: the picture that latents are, roughly: a linear map that is near to the VAE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from workers.models.diffusers_checkpoint import load_part
from workers.models.qwen_image.decoder import VAE_CLASS, decode_latents
from workers.models.qwen_image.latents import CHANNELS, Size, unpack

_PICTURES, _FIELDS, _FIELD = 4, 4, 4  # pictures of 4 x 4 fields of 4 x 4 equal latents: 1024 samples for 17 unknowns


def load_colours(checkpoint: Path, device: torch.device) -> Colours:
    """Return the map of a checkpoint's VAE, which is loaded for it and let go. Raises ConfigError."""
    vae = load_part(checkpoint, "vae", VAE_CLASS, device, torch.float32)
    return fit_colours(vae)


@torch.inference_mode()
def fit_colours(vae: Any) -> Colours:
    """Return the linear map that is nearest to a VAE's decoder, by least squares over fields of random colours."""
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(_PICTURES, CHANNELS, _FIELDS, _FIELDS, generator=generator).to(vae.device)
    latents = fields.repeat_interleave(_FIELD, 2).repeat_interleave(_FIELD, 3)  # [P, 16, 16, 16]
    pixels = torch.cat([decode_latents(vae, each[None]) for each in latents])  # [P, 3, 128, 128]
    colours = functional.avg_pool2d(pixels.clamp(-1, 1), 8).permute(0, 2, 3, 1).reshape(-1, 3)
    samples = latents.permute(0, 2, 3, 1).reshape(-1, CHANNELS)
    ones = torch.ones_like(samples[:, :1])
    solution = torch.linalg.lstsq(torch.cat([samples, ones], dim=1).double(), colours.double()).solution.float()
    return Colours(solution[:CHANNELS], solution[CHANNELS])


@dataclass(frozen=True, slots=True)
class Colours:
    """A linear map from a latent to its colour, RGB from -1 to 1.

    weight  float32 [16, 3]
    bias    float32 [3]
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def picture(self, tokens: torch.Tensor, size: Size) -> torch.Tensor:
        """Return packed latents [N, 64] as a picture of a pixel to a latent, uint8 [H / 8, W / 8, 3]."""
        latents = unpack(tokens.float(), size).permute(1, 2, 0)
        colours = latents @ self.weight + self.bias
        return ((colours * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
