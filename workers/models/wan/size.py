"""``FilmSize``: a video's frames and sides in pixels, in latents, and in tokens of the transformer."""

from __future__ import annotations

import math
from typing import NamedTuple

from workers.models.pictures.vae import LATENT
from workers.models.wan.parameters import (
    CHUNK,
    LEAST_FRAMES,
    MOST_FRAMES,
    PATCH,
    PIXELS,
    SIDES,
    BeginParameters,
    VideoFrames,
)


class FilmSize(NamedTuple):
    """A video's frames, and their sides in pixels."""

    frames: int
    height: int
    width: int

    @property
    def latents(self) -> tuple[int, int, int]:
        """The latent frames, and their rows and columns."""
        return (self.frames - 1) // CHUNK + 1, self.height // LATENT, self.width // LATENT

    @property
    def tokens(self) -> int:
        """The number of tokens of the video."""
        return self.latents[0] * (self.height // PATCH) * (self.width // PATCH)

    @property
    def is_possible(self) -> bool:
        """Whether a video may have this size."""
        return LEAST_FRAMES <= self.frames <= MOST_FRAMES and self.height in SIDES and self.width in SIDES

    @classmethod
    def of(cls, parameters: VideoFrames) -> FilmSize:
        """Return the size that a job's parameters say."""
        return cls(parameters.frames, parameters.height, parameters.width)

    @classmethod
    def of_latents(cls, frames: int, rows: int, columns: int) -> FilmSize:
        """Return the size of a video by its latents."""
        return cls((frames - 1) * CHUNK + 1, rows * LATENT, columns * LATENT)

    @classmethod
    def of_picture(cls, parameters: BeginParameters, height: int, width: int) -> FilmSize:
        """Return the size of a video that begins with a picture of these sides.

        Sides that a job leaves open are those of the picture's ratio at 832 x 480 pixels, rounded down to multiples of
        16 as Diffusers does, within what a video may have; also beside a side that the job names.
        """
        ratio = height / width
        sides = math.sqrt(PIXELS * ratio), math.sqrt(PIXELS / ratio)
        rows, columns = (min(max(round(side) // PATCH * PATCH, PATCH), SIDES.largest) for side in sides)
        return cls(parameters.frames, parameters.height or rows, parameters.width or columns)
