"""``WanVae``: the VAE of Wan, of which a video is decoded a latent frame at a time, each with what came before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import torch

from omni_jobs.errors import ConfigError
from workers.models.pictures.diffusers_checkpoint import load_part
from workers.models.pictures.vae import LATENT, PictureVae
from workers.models.wan.family import CHANNELS
from workers.models.wan.parameters import CHUNK, SIDES

Past: TypeAlias = list[Any]
"""What the convolutions over time keep of the frames before, an entry for each of them."""


def load_vae(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> WanVae:
    """Return the VAE of a checkpoint. Raises ConfigError naming what is missing or wrong."""
    vae = load_part(checkpoint, "vae", "AutoencoderKLWan", device, dtype)
    file = str(checkpoint / "vae" / "config.json")
    due = {
        "z_dim": CHANNELS, "scale_factor_spatial": LATENT, "scale_factor_temporal": CHUNK, "patch_size": None,
        "is_residual": False,
    }  # fmt: skip
    for setting, value in due.items():
        if vae.config[setting] != value:
            raise ConfigError(f"{vae.config[setting]!r:.40}, where {value!r} is due", file=file, field=setting)
    return WanVae(vae)


class WanVae(PictureVae):
    """A ``PictureVae``, of which a picture is the first frame of a video."""

    sides = SIDES
    field = 4

    def __init__(self, model: Any) -> None:
        from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

        super().__init__(model)
        self._decoding, self._encoding = (
            sum(isinstance(module, WanCausalConv3d) for module in part.modules())
            for part in (model.decoder, model.encoder)
        )

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        return self.frames(latents, None)[0][:, :, 0]

    def frames(self, latents: torch.Tensor, past: Past | None) -> tuple[torch.Tensor, Past]:
        """Return the frames of a latent frame [B, C, h, w] as pixels [B, 3, F, 8 h, 8 w], and the past of the next.

        ``past`` is that of this latent frame, which stays as it is; None: it is the first, and F is one, not four.
        """
        mean, deviation = self._scale(latents)
        # As Diffusers' pipeline, whose division by the inverse differs from a product in the last bit.
        frame = (latents / (1.0 / deviation) + mean)[:, :, None]
        kept: Past = [None] * self._decoding if past is None else list(past)
        pixels: torch.Tensor = self._model.decoder(
            self._model.post_quant_conv(frame), feat_cache=kept, feat_idx=[0], first_chunk=past is None
        )
        return pixels, kept

    def moments(self, pixels: torch.Tensor, past: Past | None) -> tuple[torch.Tensor, Past]:
        """Return what the encoder makes of a latent frame's pixels [B, 3, F, 8 h, 8 w], and the past of the next.

        ``past`` is that of these frames, which stays as it is; None: they are the first, and F is one, not four.
        """
        kept: Past = [None] * self._encoding if past is None else list(past)
        moments: torch.Tensor = self._model.encoder(pixels, feat_cache=kept, feat_idx=[0])
        return moments, kept

    def likeliest(self, moments: torch.Tensor) -> torch.Tensor:
        """Return normalized latents [B, C, F, h, w] of all latent frames' moments: the likeliest ones."""
        latents: torch.Tensor = self._model.quant_conv(moments)[:, : self.channels]
        mean, deviation = (each[:, :, None] for each in self._scale(latents))
        # As Diffusers' pipeline, whose product with the inverse differs from a division in the last bit.
        return (latents - mean) * (1.0 / deviation)
