"""``Colours``: a linear map from latents to colours, which shows roughly what the VAE would decode, for previews."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from workers.models.pictures.vae import LATENT, PictureVae

_PICTURES, _FIELDS = 4, 4


@torch.inference_mode()
def fit_colours(vae: PictureVae) -> Colours:
    """Return the linear map that is nearest to a float32 VAE's decoder, by least squares over fields of random colours.

    It decodes 4 pictures of 4 x 4 fields, whose latents are equal.
    """
    channels = vae.channels
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(_PICTURES, channels, _FIELDS, _FIELDS, generator=generator).to(vae.device)
    latents = fields.repeat_interleave(vae.field, 2).repeat_interleave(vae.field, 3)  # [4, C, 4 field, 4 field]
    pixels = torch.cat([vae.pixels(each[None]) for each in latents])
    colours = functional.avg_pool2d(pixels.clamp(-1, 1), LATENT).permute(0, 2, 3, 1).reshape(-1, 3)
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
