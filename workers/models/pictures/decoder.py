"""``PictureDecoder``: a family's VAE as a diffusion model, whose steps are tiles: latents → pixels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workers.models.pictures.tiles import STRIDE, TILE, Tiling
from workers.models.pictures.vae import LATENT, PictureVae, finite_floats
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.runners.model_failure import lacks_memory

logger = logging.getLogger(__name__)

# Pixels up to which a picture is decoded whole. The VAE looks at all of a picture at once, so tiles differ a little in
# colour; but a whole picture takes about 3 kB a pixel.
_WHOLE_PIXELS: Mapping[str, int] = {"cpu": 1 << 20, "cuda": 1 << 22}


@dataclass(slots=True)
class PictureRow:
    """One picture under way: latents [1, C, h, w] on the model's device, and its tiles."""

    latents: torch.Tensor
    tiling: Tiling

    @property
    def steps_done(self) -> int:
        return self.tiling.done


class PictureDecoder:
    """A ``DiffusionModel``. A prompt has a tensor ``latents``, float [C, h, w]."""

    def __init__(
        self, vae: PictureVae, whole_pixels: int | None = None, *, tile: int = TILE, stride: int = STRIDE
    ) -> None:
        """Take the loaded VAE. ``whole_pixels``: a larger picture is decoded in tiles; None: what suits its device.

        ``tile`` and ``stride``: pixels to a side of a tile, and from one to the next; multiples of 8.
        """
        self._vae = vae
        self._tile, self._stride = tile, stride
        self._whole = MemoryLimit(_WHOLE_PIXELS[vae.device.type] if whole_pixels is None else whole_pixels)
        self.max_batch_cost = 1  # a tile fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        """Return the tiles of the picture. Raises ModelError naming the field that does not fit."""
        return Cost(1, self._tiling(self._latents_of(prompt)).count, None)

    def begin(self, prompt: DiffusionPrompt[Any]) -> PictureRow:
        """Return the row of a prompt, with no tile decoded."""
        latents = self._latents_of(prompt)
        on_device = latents[None].to(self._vae.device, self._vae.dtype, copy=True)  # lets the payload's memory be freed
        return PictureRow(on_device, self._tiling(latents))

    def step(self, rows: Sequence[PictureRow]) -> None:
        """Decode the next tile of each row. A picture for which memory lacks as a whole is decoded in tiles at once."""
        tiles = [self._next_tile(row) for row in rows]
        for row, tile in zip(rows, tiles, strict=True):
            row.tiling.add(tile)
            self._whole.count_step()

    def finish(self, rows: Sequence[PictureRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [H, W, 3]."""
        for number, row in enumerate(rows):
            if wanted(number) and row.tiling.picture is not None:
                shades = (row.tiling.picture.float() * 0.5 + 0.5).clamp(0, 1) * 255
                yield number, RowOutput({"pixels": shades.round().to(torch.uint8).permute(1, 2, 0).contiguous()})

    def _next_tile(self, row: PictureRow) -> torch.Tensor:
        """Return the pixels [3, h, w] of the row's next tile."""
        tiling = row.tiling
        area = tiling.height * tiling.width
        if tiling.count > 1:
            return self._pixels(row.latents, tiling)
        is_a_tile = max(tiling.height, tiling.width) <= self._tile
        if is_a_tile or area <= self._whole.units:
            try:
                return self._pixels(row.latents, tiling)
            except Exception as error:
                if is_a_tile or not lacks_memory(error):
                    raise
                # The rest is below, because the exception's traceback holds the tensors of the whole picture.
            logger.warning("memory lacks for %d x %d pixels at once; trying tiles", tiling.width, tiling.height)
            self._whole.shrink(area)
            if row.latents.device.type == "cuda":
                torch.cuda.empty_cache()
        tiles = self._tiled(tiling.height, tiling.width)
        return [tiles.add(self._pixels(row.latents, tiles)) for _ in range(tiles.count)][-1]

    def _pixels(self, latents: torch.Tensor, tiling: Tiling) -> torch.Tensor:
        rows, columns = (slice(each.start // LATENT, each.stop // LATENT) for each in tiling.next())
        return self._vae.pixels(latents[:, :, rows, columns])[0]

    def _latents_of(self, prompt: DiffusionPrompt[Any]) -> torch.Tensor:
        channels, sides = self._vae.channels, self._vae.sides
        return finite_floats(
            prompt.tensors.get("latents"),
            "latents",
            lambda shape: len(shape) == 3 and shape[0] == channels and all(n * LATENT in sides for n in shape[1:]),
            f"[{channels}, h, w] of a picture whose sides are a {sides}",
        )

    def _tiling(self, latents: torch.Tensor) -> Tiling:
        height, width = (side * LATENT for side in latents.shape[1:])
        if height * width <= self._whole.max_units:
            longest = max(height, width)
            return Tiling(height, width, tile=longest, stride=longest)
        return self._tiled(height, width)

    def _tiled(self, height: int, width: int) -> Tiling:
        return Tiling(height, width, tile=self._tile, stride=self._stride)
