"""``Grids``: the image tokens of a picture, which the language model writes in two grids, a preview before the target.

A token of the target stands for 32 x 32 pixels. The preview has the picture's shape and about 256 tokens, whatever its
size; a picture that is an edit of others has none. The formulas are those of Transformers' ``GlmImageProcessor``; a
test compares the two.
"""

import math
from typing import NamedTuple

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
