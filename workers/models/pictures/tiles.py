"""``Tiling``: the tiles in which a large picture is decoded, and how they are joined.

The tiles overlap, and where they do, the picture fades from one to the other. Diffusers' ``tiled_decode`` makes the
same of tiles of these sizes, all in one call; here a tile is decoded at a time, so that tiles of other pictures may
come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

TILE: Final = 512
"""Pixels to a side of a tile."""

STRIDE: Final = 384
"""Pixels from one tile to the next."""


@dataclass(slots=True)
class Tiling:
    """The tiles of one picture, decoded one after the other, row by row.

    height, width  of the picture, in pixels
    tile           pixels to a side of a tile; those at the right and at the bottom may be smaller
    stride         pixels from one tile to the next
    picture        float [C, H, W], from the first tile on that ``add`` took
    done           the number of tiles decoded
    """

    height: int
    width: int
    tile: int
    stride: int
    picture: torch.Tensor | None = None
    done: int = 0
    _left: torch.Tensor | None = None  # the tile before, joined to its own neighbours
    _above: list[torch.Tensor] = field(default_factory=list)  # the lower end of the last tile of each column

    @property
    def columns(self) -> int:
        """The number of tiles of a row."""
        return -(-self.width // self.stride)

    @property
    def count(self) -> int:
        """The number of tiles."""
        return -(-self.height // self.stride) * self.columns

    def next(self) -> tuple[slice, slice]:
        """Return the rows and columns of the next tile, in pixels."""
        top, left = (each * self.stride for each in divmod(self.done, self.columns))
        return slice(top, min(top + self.tile, self.height)), slice(left, min(left + self.tile, self.width))

    def add(self, tile: torch.Tensor) -> torch.Tensor:
        """Join the next tile, float [C, h, w], which this changes, to those before it, and return ``picture``."""
        if self.picture is None:
            self.picture = tile.new_empty(len(tile), self.height, self.width)
        rows, columns, kept = self.join(tile)
        self.picture[:, rows, columns] = kept
        return self.picture

    def join(self, tile: torch.Tensor) -> tuple[slice, slice, torch.Tensor]:
        """Join the next tile, float [C, h, w], which this changes, to those before it.

        Return the rows and columns of the picture that are done with it, and what stands there.
        """
        rows, columns = self.next()
        row, column = divmod(self.done, self.columns)
        overlap = self.tile - self.stride
        if row:
            _blend(self._above[column], tile, overlap, dim=1)
        if column and self._left is not None:
            _blend(self._left, tile, overlap, dim=2)
        kept = tile[:, : self.stride, : self.stride]
        self._left = tile
        self._above[column : column + 1] = [tile[:, -overlap:].clone()]
        self.done += 1
        height, width = kept.shape[1:]
        return slice(rows.start, rows.start + height), slice(columns.start, columns.start + width), kept


def _blend(before: torch.Tensor, tile: torch.Tensor, overlap: int, dim: int) -> None:
    """Let the beginning of a tile go over from the end of the one before to its own, in place."""
    overlap = min(before.shape[dim], tile.shape[dim], overlap)
    end = before.narrow(dim, before.shape[dim] - overlap, overlap)
    begin = tile.narrow(dim, 0, overlap)
    share = torch.arange(overlap, device=tile.device, dtype=torch.float64) / overlap
    share = share.view([-1 if each == dim else 1 for each in range(3)])
    begin.copy_(end * (1 - share).to(tile.dtype) + begin * share.to(tile.dtype))
