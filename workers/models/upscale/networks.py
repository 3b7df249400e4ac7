"""The networks that a stage of the kind ``upscale`` knows: the closed list that stage configs and jobs choose from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

NetworkName = Literal["realesr-animevideov3-x4", "realesrgan-x4plus-anime", "realesrgan-x4plus"]

SCALE: Final = 4
"""The factor by which every network enlarges a picture's sides."""

MOST_PIXELS: Final = 1 << 22
"""The pixels of the largest picture that is taken, 2,048 x 2,048; enlarged it takes 192 MiB."""


@dataclass(frozen=True, slots=True)
class Network:
    """How a picture is cut for a network, in pixels of the picture as it comes.

    tile     the sides of the squares that it is cut into
    overlap  how much of its surroundings each tile is given on all sides; it is cut off again
    """

    tile: int
    overlap: int


# Of the first network a pixel depends on nothing farther away than its 18 convolutions of 3 x 3 reach, and the
# correction of colours reaches 2 more: with 20, tiles give what the whole picture gives, within rounding. The others
# reach farther than any tile: on drawings, the worst pixel of 400,000 differed by 2 and 8 of 255 with 24, by 7 and 16
# with 16. Tiles are as large as one core enlarges in some 0.5 to 3 seconds.
NETWORKS: Final[Mapping[NetworkName, Network]] = {
    "realesr-animevideov3-x4": Network(tile=192, overlap=20),
    "realesrgan-x4plus-anime": Network(tile=96, overlap=24),
    "realesrgan-x4plus": Network(tile=64, overlap=24),
}
