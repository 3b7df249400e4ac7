"""``Experts``: Wan's two diffusion transformers, of which one takes the noisy steps and the other one the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from omni_jobs.errors import ConfigError
from workers.models.pictures.compact_transformer import load_compact, offload_blocks
from workers.models.wan.family import CHANNELS
from workers.models.wan.model_index import EXPERTS
from workers.stages.engine_args import OmniModelConfig

PICTURE_CHANNELS: Final = 4 + CHANNELS
"""What the transformers see beside a latent where a video begins with a picture: frames that are given, and latents."""

_CLASS = "WanTransformer3DModel"


def load_experts(model: OmniModelConfig, device: torch.device, dtype: torch.dtype, channels: int) -> Experts:
    """Return the transformers of a checkpoint, which see so many numbers of each latent.

    They are as compact as the config says. Raises ConfigError naming a part that is missing or wrong.
    """
    transformers = []
    for part in EXPERTS:
        transformer = load_compact(model, _CLASS, device, dtype, part)
        file = str(model.path / part / "config.json")
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
    return Experts(transformers, device)


class Experts:
    """Both transformers, each by its number: 0 for the noisy steps, 1 for the last."""

    def __init__(self, transformers: Sequence[Any], device: torch.device) -> None:
        """Take the transformers, which compute on ``device``."""
        self.transformers = transformers
        self.device = device
        self.dtype: torch.dtype = transformers[0].dtype
        self.text_width: int = transformers[0].config.text_dim

    def offload(self) -> None:
        """Let the blocks of both, which are in host memory, come to the device when they compute."""
        for transformer in self.transformers:
            offload_blocks(transformer, self.device)

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
