"""``PictureDecoder``: Qwen-Image's VAE as a diffusion model, whose steps are tiles: latents → pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from omni_jobs.errors import ConfigError
from workers.models.diffusers_checkpoint import load_part
from workers.models.qwen_image.latents import CHANNELS, Size, check_latents, unpack
from workers.models.qwen_image.tiles import STRIDE, TILE, Tiling
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

VAE_CLASS: Final = "AutoencoderKLQwenImage"

_LATENT = 8  # pixels to a side of a latent

# Pixels up to which a picture is decoded whole. The VAE looks at all of a picture at once, so tiles differ a little in
# colour; but a whole picture takes about 3 kB a pixel.
_WHOLE_PIXELS: Mapping[str, int] = {"cpu": 1 << 20, "cuda": 1 << 22}


def load_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> PictureDecoder:
    """Return the VAE of a checkpoint, in float32 unless ``dtype`` says: bfloat16 leaves bands in smooth colours.

    A VAE whose config says ``force_upcast`` runs in float32. Raises ConfigError naming a part that is wrong.
    """
    name = "float32" if dtype in (None, "auto") else str(dtype)
    vae = load_part(model.path, "vae", VAE_CLASS, device, getattr(torch, name))
    if vae.config.get("force_upcast"):
        vae = vae.float()
    file = str(model.path / "vae" / "config.json")
    if vae.config.z_dim != CHANNELS:
        raise ConfigError(f"latents of {CHANNELS} channels are due", file=file, field="z_dim")
    if vae.spatial_compression_ratio != _LATENT:
        raise ConfigError(f"{_LATENT} pixels to a latent are due", file=file, field="temperal_downsample")
    return PictureDecoder(vae)


@dataclass(slots=True)
class DecodeRow:
    """One picture under way: latents [1, 16, H / 8, W / 8] on the model's device, and its tiles."""

    latents: torch.Tensor
    tiling: Tiling

    @property
    def steps_done(self) -> int:
        return self.tiling.done


class PictureDecoder:
    """A ``DiffusionModel``. A prompt has a tensor ``latents`` float [N, 64], and values ``height`` and ``width``."""

    def __init__(self, vae: Any, whole_pixels: int | None = None, *, tile: int = TILE, stride: int = STRIDE) -> None:
        """Take the loaded VAE. ``whole_pixels``: a larger picture is decoded in tiles; None: what suits its device.

        ``tile`` and ``stride``: pixels to a side of a tile, and from one to the next; multiples of 8.
        """
        self._vae = vae
        self._tile, self._stride = tile, stride
        self._whole_pixels = _WHOLE_PIXELS[vae.device.type] if whole_pixels is None else whole_pixels
        self.max_batch_cost = 1  # a tile fills the device, so rows take turns

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return the tiles of the picture. Raises ModelError naming the field that does not fit."""
        size = Size.of(prompt.values)
        check_latents(prompt.tensors.get("latents"), size)
        return Cost(1, self._tiling(size).count, None)

    def begin(self, prompt: DiffusionPrompt) -> DecodeRow:
        """Return the row of a prompt, with no tile decoded."""
        size = Size.of(prompt.values)
        latents = check_latents(prompt.tensors.get("latents"), size)
        on_device = latents.to(self._vae.device, self._vae.dtype)
        return DecodeRow(unpack(on_device, size)[None].clone(), self._tiling(size))

    def step(self, rows: Sequence[DecodeRow]) -> None:
        """Decode the next tile of each row."""
        tiles = [decode_latents(self._vae, self._part(row))[0] for row in rows]
        for row, tile in zip(rows, tiles, strict=True):
            row.tiling.add(tile)

    def finish(self, rows: Sequence[DecodeRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``pixels`` uint8 [H, W, 3]."""
        for number, row in enumerate(rows):
            if wanted(number) and row.tiling.picture is not None:
                shades = (row.tiling.picture.float() * 0.5 + 0.5).clamp(0, 1) * 255
                yield number, RowOutput({"pixels": shades.round().to(torch.uint8).permute(1, 2, 0).contiguous()})

    def _tiling(self, size: Size) -> Tiling:
        if size.height * size.width <= self._whole_pixels:
            longest = max(size)
            return Tiling(*size, tile=longest, stride=longest)
        return Tiling(*size, tile=self._tile, stride=self._stride)

    @staticmethod
    def _part(row: DecodeRow) -> torch.Tensor:
        rows, columns = (slice(each.start // _LATENT, each.stop // _LATENT) for each in row.tiling.next())
        return row.latents[:, :, rows, columns]


def decode_latents(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Return normalized latents [B, 16, h, w] as pixels [B, 3, 8 h, 8 w], about -1 to 1."""
    shape = (1, -1, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(latents)
    # As Diffusers' pipeline, whose division by the inverse differs from a product in the last bit.
    inverse = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latents)
    frames = latents[:, :, None] / inverse + mean
    pixels: torch.Tensor = vae.decoder(vae.post_quant_conv(frames))
    return pixels[:, :, 0]
