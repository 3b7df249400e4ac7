"""``Size``: a picture's size in pixels, and in tokens of the transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.models.qwen_image.parameters import PATCH, SIDES


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
