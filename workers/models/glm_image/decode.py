"""``Decode``: GLM-Image's VAE as a diffusion model, whose steps are tiles: latents → pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.models.diffusers_checkpoint import load_part
from workers.models.glm_image.grids import LARGEST, PIXELS, SMALLEST
from workers.models.qwen_image.tiles import STRIDE, TILE, Tiling
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

VAE_CLASS = "AutoencoderKL"

_LATENT = 8  # pixels of a latent's side

# Pixels up to which a picture is decoded whole. The VAE looks at all of a picture at once, so tiles differ a little in
# colour; but a whole picture takes about 3 kB a pixel.
_WHOLE_PIXELS: Mapping[str, int] = {"cpu": 1 << 20, "cuda": 1 << 22}


def load_decode(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Decode:
    """Return the VAE of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    name = "float32" if dtype in (None, "auto") else str(dtype)
    vae = load_part(model.path, "vae", VAE_CLASS, device, getattr(torch, name))
    file = str(model.path / "vae" / "config.json")
    if len(vae.config.block_out_channels) != 4:
        raise ConfigError(f"{_LATENT} pixels to a latent are due", file=file, field="block_out_channels")
    for field in ("latents_mean", "latents_std"):
        if len(vae.config.get(field) or ()) != vae.config.latent_channels:
            raise ConfigError("a number for each latent channel is due", file=file, field=field)
    return Decode(vae)


@dataclass(slots=True)
class PictureRow:
    """One picture on its way: latents [1, C, h, w] on the model's device, and its tiles."""

    latents: torch.Tensor
    tiling: Tiling

    @property
    def steps_done(self) -> int:
        return self.tiling.done


class Decode:
    """A ``DiffusionModel``. A prompt has a tensor ``latents`` float [C, h, w]."""

    def __init__(self, vae: Any, whole_pixels: int | None = None) -> None:
        """Take the loaded VAE. ``whole_pixels``: a larger picture is decoded in tiles; None: what suits its device."""
        self._vae = vae
        self._whole_pixels = _WHOLE_PIXELS[vae.device.type] if whole_pixels is None else whole_pixels
        self.max_batch_cost = 1  # a tile fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return the tiles of the picture. Raises ModelError naming what does not fit."""
        return Cost(1, self._tiling(self._latents(prompt)).count, None)

    def begin(self, prompt: DiffusionPrompt) -> PictureRow:
        """Return the row of a prompt, with no tile decoded."""
        latents = self._latents(prompt)
        on_device = latents[None].to(self._vae.device, self._vae.dtype, copy=True)
        return PictureRow(on_device, self._tiling(latents))

    def step(self, rows: Sequence[PictureRow]) -> None:
        """Decode the next tile of each row."""
        tiles = [decode_latents(self._vae, self._part(row))[0] for row in rows]
        for row, tile in zip(rows, tiles, strict=True):
            row.tiling.add(tile)

    def finish(self, rows: Sequence[PictureRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [H, W, 3]."""
        for number, row in enumerate(rows):
            if wanted(number) and row.tiling.picture is not None:
                shades = (row.tiling.picture.float() * 0.5 + 0.5).clamp(0, 1) * 255
                yield number, RowOutput({"pixels": shades.round().to(torch.uint8).permute(1, 2, 0).contiguous()})

    def _latents(self, prompt: DiffusionPrompt) -> torch.Tensor:
        latents = prompt.tensors.get("latents")
        if not isinstance(latents, torch.Tensor) or not latents.is_floating_point():
            raise ModelError("a tensor of floats is due", field="latents")
        channels = self._vae.config.latent_channels
        if latents.ndim != 3 or latents.shape[0] != channels or any(_no_side(side) for side in latents.shape[1:]):
            raise ModelError(f"{list(latents.shape)} are no latents [{channels}, h, w]", field="latents")
        if not bool(torch.isfinite(latents).all()):
            raise ModelError("a latent is not finite", field="latents")
        return latents

    def _tiling(self, latents: torch.Tensor) -> Tiling:
        height, width = (side * _LATENT for side in latents.shape[1:])
        if height * width <= self._whole_pixels:
            longest = max(height, width)
            return Tiling(height, width, tile=longest, stride=longest)
        return Tiling(height, width, tile=TILE, stride=STRIDE)

    @staticmethod
    def _part(row: PictureRow) -> torch.Tensor:
        rows, columns = (slice(each.start // _LATENT, each.stop // _LATENT) for each in row.tiling.next())
        return row.latents[:, :, rows, columns]


def decode_latents(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Return the transformer's latents [B, C, h, w] as pixels [B, 3, 8 h, 8 w], about -1 to 1."""
    mean, deviation = (
        torch.tensor(vae.config[name]).view(1, -1, 1, 1).to(latents) for name in ("latents_mean", "latents_std")
    )
    pixels: torch.Tensor = vae.decode(latents * deviation + mean, return_dict=False)[0]
    return pixels


def _no_side(latents: int) -> bool:
    pixels = latents * _LATENT
    return bool(pixels % PIXELS) or not SMALLEST <= pixels <= LARGEST
