"""``BeginEncoder``: the VAE as a diffusion model whose steps are latent frames: a picture → latents of a video's begin.

What is encoded is a video of the picture and nothing behind it, as the transformers were trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.diffusers_checkpoint import torch_dtype
from workers.models.pictures.source import shades_of
from workers.models.wan.parameters import CHUNK, LEAST_FRAMES, MOST_FRAMES, BeginParameters
from workers.models.wan.size import FilmSize
from workers.models.wan.vae import Past, WanVae, load_vae
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig


def load_begin_encoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> BeginEncoder:
    """Return the encoder of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    return BeginEncoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


@dataclass(slots=True)
class BeginRow:
    """The begin of one video under way.

    picture  its first frame [1, 3, 1, H, W], -1 to 1
    moments  of the latent frames that are done
    past     of the next one
    """

    picture: torch.Tensor
    moments: list[torch.Tensor] = field(default_factory=list)
    past: Past | None = None

    @property
    def steps_done(self) -> int:
        return len(self.moments)


class BeginEncoder:
    """A ``DiffusionModel``. A prompt has ``picture`` uint8 [H, W, 3], and its values ``frames``.

    The output is of the flow ``begin_latents``.
    """

    def __init__(self, vae: WanVae) -> None:
        self._vae = vae
        self.max_batch_cost = 1  # a frame fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt[BeginParameters]) -> Cost:
        """Return a step for each latent frame. Raises ModelError naming what does not fit."""
        return Cost(1, _size_of(prompt)[1].latents[0], None)

    def begin(self, prompt: DiffusionPrompt[BeginParameters]) -> BeginRow:
        """Return the row of a prompt, with nothing encoded."""
        shades = shades_of(_size_of(prompt)[0]).to(self._vae.device, self._vae.dtype)
        return BeginRow(shades[None, :, None])

    def step(self, rows: Sequence[BeginRow]) -> None:
        """Encode the next latent frame of each row: the picture, or four frames of nothing."""
        encoded = []
        for row in rows:
            frames = row.picture if not row.moments else torch.zeros_like(row.picture).repeat(1, 1, CHUNK, 1, 1)
            encoded.append(self._vae.moments(frames, row.past))
        for row, (moments, past) in zip(rows, encoded, strict=True):
            row.moments.append(moments)
            row.past = past

    def finish(self, rows: Sequence[BeginRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``begin_latents`` [C, F, h, w]."""
        for number, row in enumerate(rows):
            if wanted(number):
                latents = self._vae.likeliest(torch.cat(row.moments, dim=2))
                yield number, RowOutput({"begin_latents": latents[0]})


def _size_of(prompt: DiffusionPrompt[BeginParameters]) -> tuple[torch.Tensor, FilmSize]:
    """Return a prompt's picture with the size of its video. Raises ModelError naming what does not fit."""
    picture, frames = prompt.tensors.get("picture"), prompt.values.get("frames")
    if not isinstance(picture, torch.Tensor) or picture.dtype != torch.uint8 or picture.ndim != 3:
        raise ModelError("uint8 [H, W, 3] is due", field="picture")
    if type(frames) is not int or (frames - 1) % CHUNK:
        raise ModelError(f"{frames!r:.40} is no number of frames", field="frames")
    size = FilmSize(frames, *picture.shape[:2])
    if not LEAST_FRAMES <= frames <= MOST_FRAMES:
        raise ModelError(f"{frames} frames, and a video has {LEAST_FRAMES} to {MOST_FRAMES}", field="frames")
    if picture.shape[2] != 3 or not size.is_possible:
        raise ModelError(f"{list(picture.shape)} is no frame of a video", field="picture.shape")
    return picture, size
