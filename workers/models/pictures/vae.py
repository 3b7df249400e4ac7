"""``PictureVae``: what a family says of its VAE, so that pictures are decoded and previewed without knowing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.sides import Sides

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

    @property
    def sides(self) -> Sides:
        """What a width or height of a picture may be, in pixels."""

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [B, C, h, w] of its device and dtype as pixels [B, 3, 8 h, 8 w], about -1 to 1."""


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
