"""``Grids``: the image tokens of a picture, which the language model writes in two grids, a preview before the target.

A token of the target stands for 32 x 32 pixels. The preview has the picture's shape and about 256 tokens, whatever its
size; a picture that is an edit of others has none. The language model sees a source picture, which a job edits, as a
grid of tokens, too. The formulas are those of Transformers' ``GlmImageProcessor``; a test compares the two.
"""

import math
from pathlib import Path
from typing import NamedTuple

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.prompts.checkpoint_files import positive, processor_part
from workers.models.pictures.sides import Sides

PIXELS = 32
"""Pixels of an image token's side: a width or height is a multiple of it."""

SMALLEST, LARGEST = 64, 2048
"""The least and the largest side of a picture, in pixels."""

SIDES = Sides(PIXELS, SMALLEST, LARGEST)
"""What a width or height may be, in pixels."""

MOST_TOKENS = (LARGEST // PIXELS) ** 2 + 256
"""The most image tokens that a picture takes, with its preview."""

_PREVIEW_SIDE = 16

MOST_SOURCES = 4
"""The most pictures of a message: for each, the transformer keeps about 1.3 GB for 1024 x 1024 pixels in bfloat16."""

_MOST_RATIO = 4  # of the longer side to the shorter; Transformers' processor takes no more
_PATCH = PIXELS // 2  # pixels of a token's side where the model looks: it sees the picture at half its size
SHORTEST = _PATCH


class Grid(NamedTuple):
    """Rows and columns of image tokens."""

    height: int
    width: int

    @property
    def tokens(self) -> int:
        return self.height * self.width


class Grids(NamedTuple):
    """The grids of a picture. The language model writes the preview, if there is one, before the target."""

    preview: Grid | None
    target: Grid

    @property
    def written(self) -> list[Grid]:
        """The grids in the order in which they are written."""
        return [grid for grid in self if grid is not None]

    @property
    def tokens(self) -> int:
        return sum(grid.tokens for grid in self.written)

    @property
    def prompt_text(self) -> str:
        """The end of the prompt, which tells the model the sizes, but for the mark that begins a picture."""
        return "".join(f"<sop>{grid.height} {grid.width}<eop>" for grid in reversed(self.written))


def grids_of(height: int, width: int, *, edits: bool = False) -> Grids:
    """Return the grids of a picture of this size in pixels, each a multiple of 32.

    ``edits``: whether it is made of source pictures, which need no preview.
    """
    target = Grid(height // PIXELS, width // PIXELS)
    if edits:
        return Grids(None, target)
    ratio = target.height / target.width
    return Grids(Grid(int(math.sqrt(ratio) * _PREVIEW_SIDE), int(math.sqrt(1 / ratio) * _PREVIEW_SIDE)), target)


class SourceGrids(NamedTuple):
    """The grids of source pictures, whose sides are made multiples of 32, about within a checkpoint's bounds.

    shortest, longest  the bounds of the shorter side, and of the longer, in pixels
    """

    shortest: int
    longest: int

    @classmethod
    def read(cls, processor: Path) -> "SourceGrids":
        """Read the bounds. Raise ConfigError when they are missing, or a token is no patch of 16 pixels."""
        settings, file = processor_part(processor, "image_processor"), str(processor / "processor_config.json")
        if positive(settings, ("patch_size",), file) * positive(settings, ("merge_size",), file) != _PATCH:
            raise ConfigError(f"patches of {_PATCH} pixels are due", file=file, field="image_processor.patch_size")
        if positive(settings, ("temporal_patch_size",), file) != 1:
            raise ConfigError("1 is due", file=file, field="image_processor.temporal_patch_size")
        size = settings.get("size") or {}
        bounds = {
            "shortest_edge": settings.get("min_pixels") or size.get("shortest_edge"),
            "longest_edge": settings.get("max_pixels") or size.get("longest_edge"),
        }
        return cls(*(round(math.sqrt(positive(bounds, (name,), file))) for name in bounds))

    def of(self, height: int, width: int, field: str) -> Grid:
        """Return the grid of a source picture of this size in pixels. Raise InvalidRequest, naming ``field``."""
        found = f"the picture has {width}×{height} pixels"
        if min(height, width) < SHORTEST:
            raise InvalidRequest(f"{found}; each side needs at least {SHORTEST}", field=field)
        if max(height, width) > _MOST_RATIO * min(height, width):
            raise InvalidRequest(f"{found}; its sides differ by more than {_MOST_RATIO} times", field=field)
        scale = max(1.0, self.shortest / min(height, width))
        if max(height, width) * scale > self.longest:
            scale = self.longest / max(height, width)
        rows, columns = (max(1, round(side // 2 * scale / _PATCH)) for side in (height, width))
        return Grid(rows, columns)
