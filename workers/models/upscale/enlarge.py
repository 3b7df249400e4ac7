"""``EnlargeProcessor``: the picture in a job's messages becomes the prompt of a stage that enlarges pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from omni_jobs.errors import ModelError
from workers.models.pictures.source import decoded_sources
from workers.models.upscale.parameters import UpscaleParameters
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import StageInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class UpscalePrompt:
    """The engine prompt of a stage that enlarges pictures. There is no seed, because nothing is drawn at random.

    pixels   uint8 [H, W, 3], RGB
    opacity  uint8 [H, W], 255 where the picture is opaque; None where it is everywhere
    """

    pixels: NDArray[Any]
    parameters: UpscaleParameters
    opacity: NDArray[Any] | None = None


class EnlargeProcessor(FlowProcessor):
    """Decodes the picture of a job's messages, and leaves their text alone. Its name in a stage config is ``enlarge``.

    A picture is taken as all media are: upright by its EXIF, the first of several frames, with 8 bits a channel, in
    sRGB. Where it is transparent, its opacity goes with it.
    """

    def __call__(self, stage_input: StageInput[UpscaleParameters]) -> UpscalePrompt:
        """Return the prompt of the picture.

        Raises InvalidRequest or RequestTooLarge naming a picture that does not decode, DecodersUnavailable, ConfigError
        without a media wall, and ModelError for a job without exactly one picture.
        """
        pictures = decoded_sources(stage_input, keeps_opacity=True)
        if len(pictures) != 1:
            raise ModelError(f"there are {len(pictures)} pictures to enlarge, not one", field="messages")
        [picture] = pictures
        if picture.mode == "RGB":
            return UpscalePrompt(np.asarray(picture), stage_input.parameters)
        return UpscalePrompt(visible_colours(picture), stage_input.parameters, np.asarray(picture.getchannel("A")))


def visible_colours(picture: Image.Image) -> NDArray[Any]:
    """Return an RGBA picture's colours uint8 [H, W, 3], where fully transparent pixels look like their neighbours.

    ``EnlargeProcessor`` gives them to the network, which knows nothing of opacity. What a file keeps under full
    transparency is arbitrary, often black, and the network would draw it into the edge of what shows. A pixel with any
    opacity keeps its colour. A fully transparent one takes the mean colour of the pixels that show, however little, in
    the smallest square around it with any, of squares whose sides double from 2 pixels on. A picture of which nothing
    shows keeps all its colours.
    """
    colours = np.asarray(picture.convert("RGB")).copy()
    hidden = np.asarray(picture.getchannel("A")) == 0
    if hidden.all():
        return colours
    sums = np.dstack([np.where(hidden[..., None], 0, colours), ~hidden]).astype(np.int32)  # colours, and how many
    doublings = 0
    while hidden.any():
        height, width = sums.shape[:2]
        sums = np.pad(sums, ((0, height % 2), (0, width % 2), (0, 0)))
        sums = sums.reshape(-(-height // 2), 2, -(-width // 2), 2, 4).sum(axis=(1, 3), dtype=np.int32)
        doublings += 1
        rows, columns = np.nonzero(hidden)
        found = sums[rows >> doublings, columns >> doublings]
        seen = found[:, 3] > 0
        colours[rows[seen], columns[seen]] = np.rint(found[seen, :3] / found[seen, 3:])
        hidden[rows[seen], columns[seen]] = False
    return colours
