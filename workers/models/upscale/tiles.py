"""``Tile``: a part of a picture that is enlarged alone, with some of its surroundings."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from workers.models.upscale.networks import SCALE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Span(NamedTuple):
    """One dimension of a tile, in pixels of the picture as it comes.

    begin, end  of the tile itself
    low, high   of the tile with its surroundings, which end with the picture
    """

    begin: int
    end: int
    low: int
    high: int


class Tile(NamedTuple):
    """A rectangle of a picture with its surroundings."""

    rows: Span
    columns: Span

    def cut(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Return the tile with its surroundings as a view of a picture [H, W, …]."""
        return picture[self.rows.low : self.rows.high, self.columns.low : self.columns.high]

    def put(self, enlarged: NDArray[Any], picture: NDArray[Any]) -> None:
        """Write the enlarged tile without its surroundings to its place in the enlarged picture [4H, 4W, …]."""
        top, left = SCALE * (self.rows.begin - self.rows.low), SCALE * (self.columns.begin - self.columns.low)
        rows = slice(SCALE * self.rows.begin, SCALE * self.rows.end)
        columns = slice(SCALE * self.columns.begin, SCALE * self.columns.end)
        height, width = picture[rows, columns].shape[:2]
        picture[rows, columns] = enlarged[top : top + height, left : left + width]


def tiles_of(height: int, width: int, side: int, overlap: int) -> list[Tile]:
    """Return the tiles of a picture, row by row: they cover it, no two share a pixel, and no side is longer than asked.

    They are as equal as they can be, so that no narrow one is left at the end.
    """
    columns = _spans(width, side, overlap)
    return [Tile(row, column) for row in _spans(height, side, overlap) for column in columns]


def _spans(length: int, side: int, overlap: int) -> list[Span]:
    count = -(-length // side)
    ends = [length * number // count for number in range(count + 1)]
    return [Span(begin, end, max(0, begin - overlap), min(length, end + overlap)) for begin, end in pairwise(ends)]
