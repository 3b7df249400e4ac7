"""``Colours``: the picture that latents are, roughly: a linear map that is near to the VAE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from workers.models.diffusers_checkpoint import load_part
from workers.models.glm_image.decode import VAE_CLASS, decode_latents

_PICTURES, _FIELDS, _FIELD = 4, 4, 8  # pictures of 4 x 4 fields of 8 x 8 equal latents: 1024 samples for 17 unknowns


def load_colours(checkpoint: Path, device: torch.device) -> Colours:
    """Return the map of a checkpoint's VAE, which is loaded for it and let go. Raise ConfigError."""
    return fit_colours(load_part(checkpoint, "vae", VAE_CLASS, device, torch.float32))


@torch.inference_mode()
def fit_colours(vae: Any) -> Colours:
    """Return the linear map that is nearest to a VAE's decoder, by least squares over fields of random colours."""
    channels = vae.config.latent_channels
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(_PICTURES, channels, _FIELDS, _FIELDS, generator=generator).to(vae.device)
    latents = fields.repeat_interleave(_FIELD, 2).repeat_interleave(_FIELD, 3)  # [P, C, 32, 32]
    pixels = torch.cat([decode_latents(vae, each[None]) for each in latents])  # [P, 3, 256, 256]
    colours = functional.avg_pool2d(pixels.clamp(-1, 1), 8).permute(0, 2, 3, 1).reshape(-1, 3)
    samples = latents.permute(0, 2, 3, 1).reshape(-1, channels)
    ones = torch.ones_like(samples[:, :1])
    solution = torch.linalg.lstsq(torch.cat([samples, ones], dim=1).double(), colours.double()).solution.float()
    return Colours(solution[:channels], solution[channels])


@dataclass(frozen=True, slots=True)
class Colours:
    """A linear map from a latent to its colour, RGB from -1 to 1.

    weight  float32 [C, 3]
    bias    float32 [3]
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def picture(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [C, h, w] as a picture of a pixel to a latent, uint8 [h, w, 3]."""
        colours = latents.float().permute(1, 2, 0) @ self.weight + self.bias
        return ((colours * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
