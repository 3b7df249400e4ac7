"""``PictureVae``: what a family says of its VAE, so that pictures are decoded and previewed without knowing more."""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.sides import Sides
from workers.runners.diffusion.prompt import DiffusionPrompt

LATENT: Final = 8
"""Pixels to a side of a latent."""


class PictureVae(Protocol):
    """A loaded VAE with ``LATENT`` x ``LATENT`` pixels to a latent."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def channels(self) -> int:
        """The numbers of a latent: C."""

    def latents_of(self, prompt: DiffusionPrompt[Any]) -> torch.Tensor:
        """Return a prompt's latents, floats [C, h, w]. Raises ModelError naming the field that does not fit."""

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [B, C, h, w] of its device and dtype as pixels [B, 3, 8 h, 8 w], about -1 to 1."""


def prompt_latents(prompt: DiffusionPrompt[Any], channels: int, sides: Sides) -> torch.Tensor:
    """Return a prompt's finite latents, floats [channels, h, w], of a picture with such sides in pixels.

    Raises ModelError naming ``latents``, or its dtype or shape where that is wrong.
    """
    latents = prompt.tensors.get("latents")
    if not isinstance(latents, torch.Tensor):
        raise ModelError("there are no latents", field="latents")
    if not latents.is_floating_point():
        raise ModelError(f"latents are floats, not {latents.dtype}", field="latents.dtype")
    if latents.ndim != 3 or latents.shape[0] != channels:
        raise ModelError(f"{list(latents.shape)} are no latents [{channels}, h, w]", field="latents.shape")
    if any(side * LATENT not in sides for side in latents.shape[1:]):
        message = f"{list(latents.shape)} are of no picture whose sides are a {sides}"
        raise ModelError(message, field="latents.shape")
    if not bool(torch.isfinite(latents).all()):
        raise ModelError("a latent is not finite", field="latents")
    return latents
