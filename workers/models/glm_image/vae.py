"""``GlmImageVae``: the VAE of GLM-Image as a ``PictureVae``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import ConfigError
from workers.models.glm_image.grids import SIDES
from workers.models.pictures.colours import Colours, fit_colours
from workers.models.pictures.decoder import PictureDecoder
from workers.models.pictures.diffusers_checkpoint import load_part
from workers.models.pictures.dtypes import torch_dtype
from workers.models.pictures.vae import LATENT
from workers.stages.engine_args import OmniModelConfig

_FIELD = 8  # latents to a side of a field


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> PictureDecoder:
    """Return the decoder of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    return PictureDecoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


def load_colours(checkpoint: Path, device: torch.device) -> Colours:
    """Return the linear map from latents to colours, for previews: load the VAE, fit the map, free the VAE.

    Raises ConfigError.
    """
    return fit_colours(load_vae(checkpoint, device, torch.float32), _FIELD)


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


class GlmImageVae:
    """A ``PictureVae``."""

    sides = SIDES

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.channels: int = model.config.latent_channels

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the transformer's latents [B, C, h, w] as pixels [B, 3, 8 h, 8 w], about -1 to 1."""
        mean, deviation = self._scale(latents)
        pixels: torch.Tensor = self._model.decode(latents * deviation + mean, return_dict=False)[0]
        return pixels

    def latents_of_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [B, 3, 8 h, 8 w], -1 to 1, as latents [B, C, h, w] as the transformer takes them."""
        latents: torch.Tensor = self._model.encode(pixels.to(self.device, self.dtype)).latent_dist.mode()
        mean, deviation = self._scale(latents)
        return (latents - mean) / deviation

    def _scale(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation [1, C, 1, 1] of the VAE's own latents."""
        mean, deviation = (
            torch.tensor(self._model.config[name]).view(1, -1, 1, 1).to(latents)
            for name in ("latents_mean", "latents_std")
        )
        return mean, deviation
