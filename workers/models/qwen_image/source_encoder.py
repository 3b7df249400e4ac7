"""``SourceEncoder``: the VAE as a diffusion model whose steps are pictures: pixels → tokens for the transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.diffusers_checkpoint import torch_dtype
from workers.models.pictures.source import shades_of
from workers.models.qwen_image.latents import pack
from workers.models.qwen_image.parameters import PATCH
from workers.models.qwen_image.vae import QwenImageVae, load_vae
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig


def load_source_encoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> SourceEncoder:
    """Return the encoder of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    return SourceEncoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


@dataclass(slots=True)
class SourcesRow:
    """The pictures of one job under way: pixels uint8 [H, W, 3] on the CPU, and tokens [N, 64] of those done.

    ``values`` are the prompt's.
    """

    pictures: Sequence[torch.Tensor]
    values: Mapping[str, Any]
    tokens: list[torch.Tensor] = field(default_factory=list)

    @property
    def steps_done(self) -> int:
        return len(self.tokens)


class SourceEncoder:
    """A ``DiffusionModel`` that encodes source pictures by the VAE, one picture a step.

    A prompt has ``pictures``, a list of uint8 [H, W, 3] with sides of multiples of 16. The output is of the flow
    ``source_tokens``. Its values are the prompt's, with the pictures' sides as ``source_sizes``.
    """

    def __init__(self, vae: QwenImageVae) -> None:
        self._vae = vae
        self.max_batch_cost = 1  # a picture fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        """Return a step for each picture. Raises ModelError naming the picture that does not fit."""
        return Cost(1, len(_pictures_of(prompt)), None)

    def begin(self, prompt: DiffusionPrompt[Any]) -> SourcesRow:
        """Return the row of a prompt, with no picture encoded."""
        return SourcesRow(_pictures_of(prompt), prompt.values)

    def step(self, rows: Sequence[SourcesRow]) -> None:
        """Encode the next picture of each row."""
        encoded = [self._encoded(row.pictures[row.steps_done]) for row in rows]
        for row, tokens in zip(rows, encoded, strict=True):
            row.tokens.append(tokens)

    def finish(self, rows: Sequence[SourcesRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``source_tokens`` [S, 64], with ``source_sizes``."""
        for number, row in enumerate(rows):
            if wanted(number):
                sizes = [list(each.shape[:2]) for each in row.pictures]
                yield number, RowOutput({"source_tokens": torch.cat(row.tokens)}, {**row.values, "source_sizes": sizes})

    def _encoded(self, pixels: torch.Tensor) -> torch.Tensor:
        shades = shades_of(pixels).to(self._vae.device, self._vae.dtype)
        return pack(self._vae.latents_of_pixels(shades[None])[0])


def _pictures_of(prompt: DiffusionPrompt[Any]) -> Sequence[torch.Tensor]:
    pictures = prompt.tensors.get("pictures")
    if not isinstance(pictures, list) or not pictures:
        raise ModelError("there are no pictures", field="pictures")
    for number, pixels in enumerate(pictures):
        if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ModelError(f"{pixels.dtype} {list(pixels.shape)} is no picture", field=f"pictures.{number}")
        if 0 in pixels.shape or any(side % PATCH for side in pixels.shape[:2]):
            message = f"sides of {list(pixels.shape[:2])} are no multiples of {PATCH}"
            raise ModelError(message, field=f"pictures.{number}.shape")
    return pictures
