"""``QwenImageVae``: the VAE of Qwen-Image, which is one of videos, for pictures, which are one frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import ConfigError
from workers.models.pictures.colours import Colours, fit_colours
from workers.models.pictures.decoder import PictureDecoder
from workers.models.pictures.diffusers_checkpoint import load_part
from workers.models.pictures.dtypes import torch_dtype
from workers.models.pictures.vae import LATENT
from workers.models.qwen_image.latents import CHANNELS
from workers.models.qwen_image.parameters import SIDES
from workers.stages.engine_args import OmniModelConfig

_FIELD = 4  # latents to a side of a field


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> PictureDecoder:
    """Return the decoder of a checkpoint, in float32 unless ``dtype`` says: bfloat16 leaves bands in smooth colours.

    Raises ConfigError naming a part that is wrong.
    """
    return PictureDecoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


def load_colours(checkpoint: Path, device: torch.device) -> Colours:
    """Return the map of a checkpoint's VAE, which is loaded for it and let go. Raises ConfigError."""
    return fit_colours(load_vae(checkpoint, device, torch.float32), _FIELD)


def load_vae(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> QwenImageVae:
    """Return the VAE of a checkpoint; one whose config says ``force_upcast`` in float32.

    Raises ConfigError naming what is missing or wrong.
    """
    vae = load_part(checkpoint, "vae", "AutoencoderKLQwenImage", device, dtype)
    if vae.config.get("force_upcast"):
        vae = vae.float()
    file = str(checkpoint / "vae" / "config.json")
    if vae.config.z_dim != CHANNELS:
        raise ConfigError(f"latents of {CHANNELS} channels are due", file=file, field="z_dim")
    if vae.spatial_compression_ratio != LATENT:
        raise ConfigError(f"{LATENT} pixels to a latent are due", file=file, field="temperal_downsample")
    return QwenImageVae(vae)


class QwenImageVae:
    """A ``PictureVae``."""

    channels = CHANNELS
    sides = SIDES

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return normalized latents [B, 16, h, w] as pixels [B, 3, 8 h, 8 w], about -1 to 1."""
        config, shape = self._model.config, (1, -1, 1, 1, 1)
        mean = torch.tensor(config.latents_mean).view(shape).to(latents)
        # As Diffusers' pipeline, whose division by the inverse differs from a product in the last bit.
        inverse = 1.0 / torch.tensor(config.latents_std).view(shape).to(latents)
        frames = latents[:, :, None] / inverse + mean
        pixels: torch.Tensor = self._model.decoder(self._model.post_quant_conv(frames))
        return pixels[:, :, 0]

    def latents_of_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [B, 3, 8 h, 8 w], -1 to 1, as normalized latents [B, 16, h, w]: the likeliest ones."""
        config, shape = self._model.config, (1, -1, 1, 1, 1)
        latents: torch.Tensor = self._model.encode(pixels[:, :, None]).latent_dist.mode()
        mean = torch.tensor(config.latents_mean).view(shape).to(latents)
        deviation = torch.tensor(config.latents_std).view(shape).to(latents)
        return ((latents - mean) / deviation)[:, :, 0]
