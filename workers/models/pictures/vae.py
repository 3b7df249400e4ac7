"""``PictureVae``: the base of families' VAEs, so that pictures are decoded and previewed without knowing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.sides import Sides

LATENT: Final = 8
"""Pixels to a side of a latent."""


class PictureVae(ABC):
    """A loaded VAE with ``LATENT`` x ``LATENT`` pixels to a latent, on ``device`` and in ``dtype``.

    channels  the numbers of a latent: C
    sides     what a width or height of a picture may be, in pixels
    field     latents to a side of a square of equal ones that is large enough to have their colour: for previews
    """

    sides: Sides
    field: int

    def __init__(self, model: Any) -> None:
        """Take Diffusers' model, whose config has ``latents_mean`` and ``latents_std``."""
        self._model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.channels = len(model.config.latents_mean)

    @abstractmethod
    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [B, C, h, w] of its device and dtype as pixels [B, 3, 8 h, 8 w], about -1 to 1."""

    def _scale(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation [1, C, 1, 1] of the model's own latents."""
        mean, deviation = (
            torch.tensor(self._model.config[name]).view(1, -1, 1, 1).to(latents)
            for name in ("latents_mean", "latents_std")
        )
        return mean, deviation


def finite_floats(tensor: object, field: str, fits: Callable[[torch.Size], bool], due: str) -> torch.Tensor:
    """Return a prompt's tensor of finite floats whose shape ``fits``; ``due`` says which do, for the message.

    Raises ModelError naming the field, or its dtype or shape where that is wrong.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ModelError("there is no tensor", field=field)
    if not tensor.is_floating_point():
        raise ModelError(f"floats are due, not {tensor.dtype}", field=f"{field}.dtype")
    if not fits(tensor.shape):
        raise ModelError(f"{list(tensor.shape)} where {due} is due", field=f"{field}.shape")
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError("an element is not finite", field=field)
    return tensor
