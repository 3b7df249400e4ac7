"""``PictureVae``: what a family says of its VAE, so that pictures are decoded and previewed without knowing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from workers.runners.diffusion.prompt import DiffusionPrompt

if TYPE_CHECKING:
    import torch

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

    def latents_of(self, prompt: DiffusionPrompt) -> torch.Tensor:
        """Return a prompt's latents, floats [C, h, w]. Raises ModelError naming the field that does not fit."""

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return latents [B, C, h, w] of its device and dtype as pixels [B, 3, 8 h, 8 w], about -1 to 1."""
