"""``WhisperPrompt``: the engine prompt of a Whisper stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.models.whisper.parameters import WhisperParameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLING_RATE = 16_000
"""Hz, of all sound that Whisper takes."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording of a request.

    samples  float32 [T], mono at ``SAMPLING_RATE``, full scale 1
    media    its number among the request's media
    field    its place in the request, for errors
    """

    samples: NDArray[Any]
    media: int
    field: str

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return len(self.samples) / SAMPLING_RATE


@dataclass(frozen=True, slots=True)
class WhisperPrompt:
    """The engine prompt of a Whisper stage: the recordings of a request in the order of its messages.

    The seed changes nothing, because beam search draws no samples.
    """

    recordings: Sequence[Recording]
    parameters: WhisperParameters
    seed: int
