"""The engine prompts of the stages that speak: a text for ``acoustic``, its features for ``vocoder``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.models.hibari.parameters import AcousticParameters, VocoderParameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPECTRA = ("lh", "th", "ln", "lr", "phi")
"""The names of the features float32 [601, frames], in the order in which the model gives them; f0 [frames] follows."""

SAMPLING_RATE = 24_000
"""Hz, of the speech of all voices."""

BINS = 601
"""The values of each spectrum in a frame."""

HOP = 300
"""The samples of one frame."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """The engine prompt of an acoustic stage.

    voice      None: the first of the stage's voices
    is_answer  whether a model wrote the text: then the job keeps it, although the voice cannot say all of it
    """

    text: str
    voice: str | None
    parameters: AcousticParameters
    seed: int
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class FeaturesPrompt:
    """The engine prompt of a vocoder stage.

    features   by name, as in the flow ``acoustic_features``
    sentences  frames of each sentence; together they are all frames. None: there is nothing to say
    """

    features: Mapping[str, NDArray[Any]]
    sentences: Sequence[int]
    parameters: VocoderParameters
    seed: int
