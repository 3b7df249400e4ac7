"""The test card: colour bars, a strip of squares that shows what the picture was asked for, and their like.

All pixels are uint8 [H, W, 3], RGB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BARS = np.array(  # white, yellow, cyan, green, magenta, red, blue, black, at three quarters of full brightness
    [[191 * (channel in bar) for channel in "rgb"] for bar in ("rgb", "rg", "gb", "g", "rb", "r", "b", "")], np.uint8
)
_ROWS, _COLUMNS = 8, 32  # squares of the strip: the 256 bits of a digest
_STRIP = 6  # the part of the height that it takes
_LONGEST_PREVIEW = 128  # pixels, because a preview goes through the database


def colour_bars(height: int, width: int) -> NDArray[Any]:
    """Return eight upright bars: white, yellow, cyan, green, magenta, red, blue, black."""
    row: NDArray[Any] = _BARS[np.arange(width) * len(_BARS) // width]
    return np.repeat(row[None], height, axis=0)


def side_by_side(pictures: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return pictures of one height beside each other, in inverted colours."""
    together: NDArray[Any] = np.concatenate(pictures, axis=1)
    return 255 - together


def strip(text: str, seed: int, height: int, width: int) -> NDArray[Any]:
    """Return the strip of a picture of this size: 8 rows of 32 squares, white for a 1 and black for a 0.

    They are the bits of the SHA-256 of the seed in decimal, a line feed and the text, from the highest on.
    """
    digest = hashlib.sha256(f"{seed}\n{text}".encode()).digest()
    squares = np.unpackbits(np.frombuffer(digest, np.uint8)).reshape(_ROWS, _COLUMNS) * np.uint8(255)
    height //= _STRIP
    rows, columns = np.arange(height) * _ROWS // height, np.arange(width) * _COLUMNS // width
    return np.repeat(squares[rows][:, columns, None], 3, axis=2)


def with_strip(picture: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    """Return a picture whose lowest rows are the strip ``below``."""
    return np.concatenate([picture[: len(picture) - len(below)], below])


def moved(picture: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return a picture that has moved to the right, and comes in again on the left."""
    return np.roll(picture, columns, axis=1)


def emerging(picture: NDArray[Any], share: float, seed: int) -> NDArray[Any]:
    """Return a preview: the picture thinned, of which ``share`` shows through noise drawn by ``seed``."""
    stride = -(-max(picture.shape[:2]) // _LONGEST_PREVIEW)
    thinned = picture[::stride, ::stride]
    noise = np.random.Generator(np.random.PCG64(seed)).integers(0, 256, thinned.shape)
    return np.rint(share * thinned + (1 - share) * noise).astype(np.uint8)
