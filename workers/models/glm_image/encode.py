"""``Encode``: the pictures that a job edits as image tokens and latents, a diffusion model whose steps are pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from omni_jobs.errors import InvalidRequest, ModelError
from workers.models.glm_image.grids import PIXELS, SourceGrids
from workers.models.glm_image.picture_tokenizer import PictureTokenizer, load_picture_tokenizer
from workers.models.glm_image.prompts import PROCESSOR
from workers.models.glm_image.sources import Source, as_payload
from workers.models.glm_image.vae import GlmImageVae, load_vae
from workers.models.pictures.diffusers_checkpoint import denoising_dtype
from workers.models.pictures.vae import LATENT
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig


def load_encode(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Encode:
    """Return the model of a checkpoint. Raises ConfigError naming what is missing or wrong.

    ``dtype`` is the vision tower's; None or auto: bfloat16 on a GPU, else float32. The VAE runs in float32.
    """
    return Encode(
        SourceGrids.read(model.path / PROCESSOR),
        load_picture_tokenizer(model.path, device, denoising_dtype(dtype, device)),
        load_vae(model.path, device, torch.float32),
    )


@dataclass(slots=True)
class SourceRow:
    """The pictures of one job under way: ``pixels`` uint8 [H, W, 3] each, and those that are ``encoded``."""

    pixels: Sequence[torch.Tensor]
    encoded: list[Source] = field(default_factory=list)
    steps_done: int = 0


class Encode:
    """A ``DiffusionModel``. A prompt has ``pixels``, a list of uint8 [H, W, 3], which may be empty."""

    def __init__(self, grids: SourceGrids, tokenizer: PictureTokenizer, vae: GlmImageVae) -> None:
        self._grids = grids
        self._tokenizer = tokenizer
        self._vae = vae
        self._scaler: Any = VaeImageProcessor(vae_scale_factor=LATENT)
        self.max_batch_cost = 1  # a picture fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        """Return a step for each picture, or one if there is none. Raises ModelError naming ``pixels``."""
        return Cost(1, max(len(self._pixels(prompt)), 1), None)

    def begin(self, prompt: DiffusionPrompt[Any]) -> SourceRow:
        """Return the row of a prompt, with no picture encoded."""
        return SourceRow([each.clone() for each in self._pixels(prompt)])

    def step(self, rows: Sequence[SourceRow]) -> None:
        """Encode the next picture of each row."""
        encoded = [self._encoded(row.pixels[row.steps_done]) if row.pixels else None for row in rows]
        for row, source in zip(rows, encoded, strict=True):
            if source is not None:
                row.encoded.append(source)
            row.steps_done += 1

    def finish(self, rows: Sequence[SourceRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's tensors of the flow ``source_pictures``."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput(as_payload(row.encoded, self._vae.channels))

    def _encoded(self, pixels: torch.Tensor) -> Source:
        """Return a picture's tokens and latents, which show the same: four times four latents to a token."""
        picture = Image.fromarray(pixels.numpy())
        token_ids = self._tokenizer.tokens(picture)
        height, width = (side * PIXELS for side in token_ids.shape)
        shades: torch.Tensor = self._scaler.preprocess(picture, height, width)
        return Source(token_ids, self._vae.latents_of_pixels(shades)[0])

    def _pixels(self, prompt: DiffusionPrompt[Any]) -> list[torch.Tensor]:
        """Return the pictures of a prompt, checked."""
        pictures = prompt.tensors.get("pixels", [])
        if not isinstance(pictures, list):
            raise ModelError("a list of pictures is due", field="pixels")
        for pixels in pictures:
            if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
                raise ModelError(f"{pixels.dtype} {list(pixels.shape)} is no picture uint8 [H, W, 3]", field="pixels")
            try:
                self._grids.of(pixels.shape[0], pixels.shape[1], "pixels")
            except InvalidRequest as error:
                raise ModelError(error.message, field="pixels") from None
        return pictures
