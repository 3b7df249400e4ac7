"""The sizes to which pictures are scaled for an edit, and that of an edit that names none."""

from __future__ import annotations

import math

from workers.models.qwen_image.parameters import MAX_SIDE
from workers.models.qwen_image.size import Size

MULTIPLE = 32  # pixels: sides are scaled to multiples of it
SOURCE_PIXELS = 1024 * 1024
"""The area to which a picture is scaled for the transformer, and that of an edit that names no size."""


def size_of_area(pixels: int, size: Size) -> Size:
    """Return the size of about so many pixels in the ratio of another: sides of multiples of 32, at least 32.

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
