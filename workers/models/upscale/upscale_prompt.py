"""``UpscalePrompt``: the engine prompt of a stage that enlarges pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.models.upscale.parameters import UpscaleParameters

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
