"""``FilmDecoder``: Wan's VAE as a diffusion model, whose steps are tiles of space and time: latents → frames.

A tile is a part of the frame through one latent frame, so four frames. The tiles of a part follow each other in time,
because each needs what its convolutions keep of those before; then comes the next part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from workers.models.pictures.diffusers_checkpoint import torch_dtype
from workers.models.pictures.tiles import Tiling
from workers.models.pictures.vae import LATENT, finite_floats
from workers.models.wan.parameters import CHUNK, LEAST_FRAMES, MOST_FRAMES, SIDES, PlaybackParameters
from workers.models.wan.size import FilmSize
from workers.models.wan.vae import Past, WanVae, load_vae
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.runners.model_failure import lacks_memory
from workers.stages.engine_args import OmniModelConfig

logger = logging.getLogger(__name__)

_TILE, _STRIDE = 256, 192  # pixels to a side of a tile, and from one to the next, as Diffusers'

# Pixels of a frame up to which it is one tile. Four frames take about 6 kB a pixel.
_WHOLE_PIXELS: Mapping[str, int] = {"cpu": 1 << 18, "cuda": 1 << 20}


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> FilmDecoder:
    """Return the decoder of a checkpoint, in float32 unless ``dtype`` says. Raises ConfigError naming what is wrong."""
    return FilmDecoder(load_vae(model.path, device, torch_dtype(dtype, torch.float32)))


class FilmTile(NamedTuple):
    """What a step makes of a row: a tile, or the whole video where memory lacked for a frame as one tile.

    frames  [3, n, h, w] of the tile
    past    what the next tile needs of this one and of those before it
    film    uint8 [frames, H, W, 3], the whole video
    """

    frames: torch.Tensor | None = None
    past: Past | None = None
    film: torch.Tensor | None = None


@dataclass(slots=True)
class FramesRow:
    """One video whose frames are being decoded, tile after tile.

    latents   [1, C, F, h, w] on the model's device
    tiling    the parts of a frame
    pixels    uint8 [frames, H, W, 3] on the CPU: the video, as far as it is decoded
    fps       frames a second at which the video is played
    past      what the next tile needs of those before it; None: it is the first of its part
    part      the decoded tiles [3, n, h, w] of the part under way; none where a frame is one part, for pixels has them
    complete  whether ``pixels`` is the whole video, though steps are left: they do nothing
    """

    latents: torch.Tensor
    tiling: Tiling
    pixels: torch.Tensor
    fps: float
    past: Past | None = None
    part: list[torch.Tensor] = field(default_factory=list)
    complete: bool = False
    steps_done: int = 0

    @property
    def latent_frame(self) -> int:
        """The latent frame of the next tile."""
        return self.steps_done % self.latents.shape[2]

    def take(self, tile: FilmTile) -> None:
        """Note a step, and what it made."""
        if tile.film is not None:
            self.pixels, self.complete = tile.film, True
        elif tile.frames is not None and self.tiling.count == 1:
            end = self.latent_frame * CHUNK + 1
            self.pixels[end - tile.frames.shape[1] : end] = _as_bytes(tile.frames)
        elif tile.frames is not None:
            self.part.append(tile.frames)
        self.steps_done += 1
        self.past = tile.past if self.latent_frame else None
        if self.part and not self.latent_frame:
            self._end_part()

    def _end_part(self) -> None:
        """Join a part whose frames are all decoded to those before it."""
        part = torch.cat(self.part, dim=1)  # [3, F, h, w]
        self.part.clear()
        rows, columns, kept = self.tiling.join(part.flatten(0, 1))
        self.pixels[:, rows, columns] = _as_bytes(kept.reshape(*part.shape[:2], *kept.shape[1:]))


class FilmDecoder:
    """A ``DiffusionModel``. A prompt has a tensor ``latents``, float [C, F, h, w], and ``PlaybackParameters``."""

    def __init__(
        self, vae: WanVae, whole_pixels: int | None = None, *, tile: int = _TILE, stride: int = _STRIDE
    ) -> None:
        """Take the loaded VAE. ``whole_pixels``: a larger frame is decoded in tiles; None: what suits its device.

        ``tile`` and ``stride``: pixels to a side of a tile, and from one to the next; multiples of 8.
        """
        self._vae = vae
        self._tile, self._stride = tile, stride
        self._whole = MemoryLimit(_WHOLE_PIXELS[vae.device.type] if whole_pixels is None else whole_pixels)
        self.max_batch_cost = 1  # a tile fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt[PlaybackParameters]) -> Cost:
        """Return the tiles of the video. Raises ModelError naming the field that does not fit."""
        latents = self._latents_of(prompt)
        return Cost(1, self._tiling(latents).count * latents.shape[1], None)

    def begin(self, prompt: DiffusionPrompt[PlaybackParameters]) -> FramesRow:
        """Return the row of a prompt, with no tile decoded."""
        latents = self._latents_of(prompt)
        on_device = latents[None].to(self._vae.device, self._vae.dtype, copy=True)  # lets the payload's memory be freed
        size = FilmSize.of_latents(*latents.shape[1:])
        pixels = torch.zeros(*size, 3, dtype=torch.uint8)
        return FramesRow(on_device, self._tiling(latents), pixels, prompt.parameters.fps)

    def step(self, rows: Sequence[FramesRow]) -> None:
        """Decode the next tile of each row.

        A video for whose frames memory lacks as one tile is decoded in smaller ones, all in this step.
        """
        tiles = [self._next_tile(row) for row in rows]
        for row, tile in zip(rows, tiles, strict=True):
            row.take(tile)
            self._whole.count_step()

    def finish(self, rows: Sequence[FramesRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [F, H, W, 3] with their ``frame_rate``."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"pixels": row.pixels}, {"frame_rate": row.fps})

    def _next_tile(self, row: FramesRow) -> FilmTile:
        if row.complete:
            return FilmTile()
        height, width = row.tiling.height, row.tiling.width
        if row.tiling.count > 1 or max(height, width) <= self._tile:
            return self._decoded(row)
        fits = height * width <= self._whole.units
        if row.past is not None or (fits and not row.latent_frame):  # without its past a later frame is not decoded
            try:
                return self._decoded(row)
            except Exception as error:
                if not lacks_memory(error):
                    raise
                # The rest is below, because the exception's traceback holds the tensors of the whole frame.
            logger.warning("memory lacks for frames of %d x %d pixels at once; trying tiles", width, height)
            row.past = None  # the tiles begin anew, and need its memory
            self._whole.shrink(height * width)
            if row.latents.device.type == "cuda":
                torch.cuda.empty_cache()
        tiling = Tiling(height, width, self._tile, self._stride)
        tiled = FramesRow(row.latents, tiling, torch.zeros_like(row.pixels), row.fps)
        for _ in range(tiling.count * row.latents.shape[2]):
            tiled.take(self._decoded(tiled))
        return FilmTile(film=tiled.pixels)

    def _decoded(self, row: FramesRow) -> FilmTile:
        rows, columns = (slice(each.start // LATENT, each.stop // LATENT) for each in row.tiling.next())
        frames, past = self._vae.frames(row.latents[:, :, row.latent_frame, rows, columns], row.past)
        return FilmTile(frames[0], past)

    def _latents_of(self, prompt: DiffusionPrompt[PlaybackParameters]) -> torch.Tensor:
        channels = self._vae.channels
        return finite_floats(
            prompt.tensors.get("latents"),
            "latents",
            lambda shape: len(shape) == 4 and shape[0] == channels and FilmSize.of_latents(*shape[1:]).is_possible,
            f"[{channels}, F, h, w] of a video of {LEAST_FRAMES} to {MOST_FRAMES} frames whose sides are a {SIDES}",
        )

    def _tiling(self, latents: torch.Tensor) -> Tiling:
        height, width = (side * LATENT for side in latents.shape[2:])
        if height * width <= self._whole.max_units:
            longest = max(height, width)
            return Tiling(height, width, tile=longest, stride=longest)
        return Tiling(height, width, tile=self._tile, stride=self._stride)


def _as_bytes(frames: torch.Tensor) -> torch.Tensor:
    """Return frames [3, F, h, w], about -1 to 1, as pixels uint8 [F, h, w, 3] on the CPU."""
    shades = (frames.float() * 0.5 + 0.5).clamp(0, 1) * 255
    return shades.round().to(torch.uint8).permute(1, 2, 3, 0).to("cpu")
