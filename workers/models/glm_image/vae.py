"""``GlmImageVae``: the VAE of GLM-Image."""

from __future__ import annotations

from pathlib import Path

import torch

from omni_jobs.errors import ConfigError
from workers.models.glm_image.grids import SIDES
from workers.models.pictures.decoder import PictureDecoder
from workers.models.pictures.diffusers_checkpoint import load_part, torch_dtype
from workers.models.pictures.vae import LATENT, PictureVae
from workers.stages.engine_args import OmniModelConfig


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> PictureDecoder:
    """Return the decoder of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    return PictureDecoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


def load_vae(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> GlmImageVae:
    """Return the VAE of a checkpoint. Raises ConfigError naming what is missing or wrong."""
    vae = load_part(checkpoint, "vae", "AutoencoderKL", device, dtype)
    file = str(checkpoint / "vae" / "config.json")
    if len(vae.config.block_out_channels) != 4:
        raise ConfigError(f"{LATENT} pixels to a latent are due", file=file, field="block_out_channels")
    for field in ("latents_mean", "latents_std"):
        if len(vae.config.get(field) or ()) != vae.config.latent_channels:
            raise ConfigError("a number for each latent channel is due", file=file, field=field)
    return GlmImageVae(vae)


class GlmImageVae(PictureVae):
    """A ``PictureVae``."""

    sides = SIDES
    field = 8

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._scale(latents)
        pixels: torch.Tensor = self._model.decode(latents * deviation + mean, return_dict=False)[0]
        return pixels

    def latents_of_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [B, 3, 8 h, 8 w], -1 to 1, as latents [B, C, h, w] as the transformer takes them."""
        latents: torch.Tensor = self._model.encode(pixels.to(self.device, self.dtype)).latent_dist.mode()
        mean, deviation = self._scale(latents)
        return (latents - mean) / deviation
