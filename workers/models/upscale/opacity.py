"""A picture's opacity, which is enlarged beside its colours, and the colours where it hides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from workers.models.upscale.networks import SCALE

if TYPE_CHECKING:
    from numpy.typing import NDArray


def visible_colours(picture: Image.Image) -> NDArray[Any]:
    """Return the colours uint8 [H, W, 3] of an RGBA picture, with those of the nearest visible pixels where none shows.

    What a file keeps under full transparency is arbitrary, often black, and a network would draw it into the edge of
    what shows. The mean of the visible pixels in the smallest square that has one takes its place, of squares whose
    sides double from 2 pixels on. A picture of which nothing shows keeps its colours.
    """
    colours = np.asarray(picture.convert("RGB")).copy()
    hidden = np.asarray(picture.getchannel("A")) == 0
    if hidden.all():
        return colours
    means = picture.copy()
    while hidden.any():
        # All visible pixels weigh the same. Pillow weighs colours by opacity where it resamples.
        means.putalpha(means.getchannel("A").point(lambda opacity: 255 if opacity else 0))
        means = means.resize((-(-means.width // 2), -(-means.height // 2)), Image.Resampling.BOX)
        rows, columns = np.nonzero(hidden)
        found = np.asarray(means)[rows * means.height // picture.height, columns * means.width // picture.width]
        seen = found[:, 3] > 0
        colours[rows[seen], columns[seen]] = found[seen, :3]
        hidden[rows[seen], columns[seen]] = False
    return colours


def enlarged(opacity: NDArray[Any]) -> NDArray[Any]:
    """Return an opacity uint8 [H, W] four times as large, by bicubic interpolation: uint8 [4H, 4W]."""
    height, width = opacity.shape
    image = Image.fromarray(opacity).resize((SCALE * width, SCALE * height), Image.Resampling.BICUBIC)
    return np.asarray(image)
