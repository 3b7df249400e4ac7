"""``PictureEncoder``: a family's VAE as a diffusion model, whose steps are pictures: pixels → latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.source import shades_of
from workers.models.pictures.vae import LATENT
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt


class EncodingVae(Protocol):
    """A loaded VAE that encodes, with ``LATENT`` x ``LATENT`` pixels to a latent."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def encoded(self, shades: torch.Tensor) -> torch.Tensor:
        """Return pictures [B, 3, 8 h, 8 w] of its device and dtype, -1 to 1, as normalized latents [B, C, h, w]."""


@dataclass(slots=True)
class SourcesRow:
    """The pictures of one job under way: pixels uint8 [H, W, 3] on the CPU, and latents [C, h, w] of those done.

    ``values`` are the prompt's.
    """

    pictures: Sequence[torch.Tensor]
    values: Mapping[str, Any]
    latents: list[torch.Tensor] = field(default_factory=list)

    @property
    def steps_done(self) -> int:
        return len(self.latents)


class PictureEncoder:
    """A ``DiffusionModel``. A prompt has ``pictures``, a list of uint8 [H, W, 3] with sides of multiples of 8.

    The output keeps the flow ``picture_latents``: the latents of all pictures by rows, [L, C], and the ``sizes`` of the
    pictures, [height, width] in pixels each. It passes the prompt's values on. Latents are those that the transformer
    of the family takes.
    """

    def __init__(self, vae: EncodingVae) -> None:
        self._vae = vae
        self.max_batch_cost = 1  # a picture fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return a step for each picture. Raises ModelError naming the picture that does not fit."""
        return Cost(1, len(_pictures_of(prompt)), None)

    def begin(self, prompt: DiffusionPrompt) -> SourcesRow:
        """Return the row of a prompt, with no picture encoded."""
        return SourcesRow(_pictures_of(prompt), prompt.values)

    def step(self, rows: Sequence[SourcesRow]) -> None:
        """Encode the next picture of each row."""
        encoded = [self._encoded(row.pictures[row.steps_done]) for row in rows]
        for row, latents in zip(rows, encoded, strict=True):
            row.latents.append(latents)

    def finish(self, rows: Sequence[SourcesRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``picture_latents`` [L, C], with ``sizes``."""
        for number, row in enumerate(rows):
            if wanted(number):
                latents = torch.cat([each.flatten(1).T for each in row.latents])
                sizes = [list(each.shape[:2]) for each in row.pictures]
                yield number, RowOutput({"picture_latents": latents.contiguous()}, {**row.values, "sizes": sizes})

    def _encoded(self, pixels: torch.Tensor) -> torch.Tensor:
        shades = shades_of(pixels).to(self._vae.device, self._vae.dtype)
        return self._vae.encoded(shades[None])[0]


def _pictures_of(prompt: DiffusionPrompt) -> Sequence[torch.Tensor]:
    pictures = prompt.tensors.get("pictures")
    if not isinstance(pictures, list) or not pictures:
        raise ModelError("there are no pictures", field="pictures")
    for number, pixels in enumerate(pictures):
        if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ModelError(f"{pixels.dtype} {list(pixels.shape)} is no picture", field=f"pictures.{number}")
        if 0 in pixels.shape or any(side % LATENT for side in pixels.shape[:2]):
            message = f"sides of {list(pixels.shape[:2])} are no multiples of {LATENT}"
            raise ModelError(message, field=f"pictures.{number}.shape")
    return pictures
