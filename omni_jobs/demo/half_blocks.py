"""``HalfBlocks``: a picture in a terminal, two pixels in each character."""

from __future__ import annotations

from PIL import Image
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

_UPPER_HALF = "▀"  # its foreground is the upper pixel, its background the lower one


class HalfBlocks:
    """A rich renderable of a picture: a column for each pixel of its width, a line for each two rows of pixels.

    Only a terminal with colours shows it.
    """

    def __init__(self, picture: Image.Image) -> None:
        """Take a picture, RGB. A last row without a partner is shown above the terminal's own background."""
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = self._picture.size
        for top in range(0, height, 2):
            for x in range(width):
                lower = self._colour(x, top + 1) if top + 1 < height else None
                yield Segment(_UPPER_HALF, Style(color=self._colour(x, top), bgcolor=lower))
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._picture.width, self._picture.width)

    def _colour(self, x: int, y: int) -> Color:
        red, green, blue = self._picture.getpixel((x, y))  # type: ignore[misc]
        return Color.from_rgb(red, green, blue)
