"""``QwenImageVae``: the VAE of Qwen-Image, which is one of videos, for pictures, which are one frame."""

from __future__ import annotations

from pathlib import Path

import torch

from omni_jobs.errors import ConfigError
from workers.models.pictures.decoder import PictureDecoder
from workers.models.pictures.diffusers_checkpoint import load_part, torch_dtype
from workers.models.pictures.vae import LATENT, PictureVae
from workers.models.qwen_image.family import CHANNELS
from workers.models.qwen_image.parameters import SIDES
from workers.stages.engine_args import OmniModelConfig


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> PictureDecoder:
    """Return the decoder of a checkpoint, in float32 unless ``dtype`` says: bfloat16 leaves bands in smooth colours.

    Raises ConfigError naming a part that is wrong.
    """
    return PictureDecoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


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


class QwenImageVae(PictureVae):
    """A ``PictureVae``, of which a picture is a video of one frame."""

    sides = SIDES
    field = 4

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._scale(latents)
        # As Diffusers' pipeline, whose division by the inverse differs from a product in the last bit.
        frames = (latents / (1.0 / deviation) + mean)[:, :, None]
        pixels: torch.Tensor = self._model.decoder(self._model.post_quant_conv(frames))
        return pixels[:, :, 0]

    def latents_of_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return pixels [B, 3, 8 h, 8 w], -1 to 1, as normalized latents [B, 16, h, w]: the likeliest ones."""
        latents: torch.Tensor = self._model.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0]
        mean, deviation = self._scale(latents)
        return (latents - mean) / deviation
