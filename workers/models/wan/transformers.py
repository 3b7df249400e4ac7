"""``Experts``: Wan's two diffusion transformers, of which one takes the noisy steps and the other one the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from omni_jobs.errors import ConfigError
from workers.models.pictures.diffusers_checkpoint import load_part
from workers.models.wan.model_index import EXPERTS

CHANNELS: Final = 16
"""The numbers of a latent."""

PICTURE_CHANNELS: Final = 4 + CHANNELS
"""What the transformers see beside a latent where a video begins with a picture: frames that are given, and latents."""

TEXT_TOKENS: Final = 512
"""The rows of text that a transformer sees: those of a shorter text and zeros, as it was trained."""

_CLASS = "WanTransformer3DModel"


def load_experts(checkpoint: Path, device: torch.device, dtype: torch.dtype, channels: int) -> Experts:
    """Return the transformers of a checkpoint, which see so many numbers of each latent.

    Raises ConfigError naming a part that is missing or wrong.
    """
    transformers = []
    for part in EXPERTS:
        transformer = load_part(checkpoint, part, _CLASS, device, dtype)
        file = str(checkpoint / part / "config.json")
        for setting, due in (
            ("in_channels", channels), ("out_channels", CHANNELS), ("patch_size", (1, 2, 2)), ("image_dim", None),
        ):  # fmt: skip
            found = transformer.config[setting]
            if (tuple(found) if isinstance(found, list) else found) != due:
                raise ConfigError(f"{found!r:.40}, where {due!r} is due", file=file, field=setting)
        transformers.append(transformer)
    widths = {transformer.config.text_dim for transformer in transformers}
    if len(widths) > 1:
        raise ConfigError("both transformers must take texts of one width", file=file, field="text_dim")
    return Experts(transformers)


class Experts:
    """Both transformers, each by its number: 0 for the noisy steps, 1 for the last."""

    def __init__(self, transformers: Sequence[Any]) -> None:
        self.transformers = transformers
        self.device: torch.device = transformers[0].device
        self.dtype: torch.dtype = transformers[0].dtype
        self.text_width: int = transformers[0].config.text_dim

    def forward(
        self, expert: int, latents: torch.Tensor, times: torch.Tensor, texts: torch.Tensor
    ) -> Sequence[torch.Tensor]:
        """Return the velocities [C, F, h, w] each of latents [B, C′, F, h, w] at times [B], under texts [B, 512, H]."""
        prediction: torch.Tensor = self.transformers[expert](
            hidden_states=latents.to(self.dtype),
            timestep=times.to(self.device),
            encoder_hidden_states=texts,
            return_dict=False,
        )[0]
        return list(prediction)
