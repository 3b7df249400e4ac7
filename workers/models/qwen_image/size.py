"""``Size``: a picture's size in pixels, and in tokens of the transformer; and the sizes of an edit's pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.models.qwen_image.parameters import MAX_SIDE, MULTIPLE, PATCH, SIDES, SOURCE_PIXELS


class Size(NamedTuple):
    """A picture's size in pixels, multiples of 16."""

    height: int
    width: int

    @property
    def grid(self) -> tuple[int, int]:
        """The rows of tokens, and the tokens of a row."""
        return self.height // PATCH, self.width // PATCH

    @property
    def tokens(self) -> int:
        """The number of tokens of the picture."""
        rows, columns = self.grid
        return rows * columns

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Size:
        """Return the size that a payload's values name. Raises ModelError naming the one that is wrong."""
        return cls(SIDES.of(values, "height"), SIDES.of(values, "width"))


def size_of_area(pixels: int, size: Size) -> Size:
    """Return the size of about ``pixels`` in the ratio of another: sides of multiples of 32, at least 32.

    Source: Diffusers, ``calculate_dimensions`` of pipeline_qwenimage_edit_plus.py.
    """
    ratio = size.width / size.height
    width = math.sqrt(pixels * ratio)
    return Size(*(max(round(side / MULTIPLE), 1) * MULTIPLE for side in (width / ratio, width)))


def default_size(source: Size) -> Size:
    """Return the size of an edit of this picture that names none: its ratio at 1024 x 1024 pixels.

    A longer picture than one of 4 : 1, which would have sides beyond 2048, is made smaller in its ratio.
    """
    size = size_of_area(SOURCE_PIXELS, source)
    longest = max(size)
    if longest <= MAX_SIDE:
        return size
    return size_of_area(SOURCE_PIXELS * MAX_SIDE**2 // longest**2, source)
