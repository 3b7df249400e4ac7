"""The cost of a job: how much work it asks for, in proportion to a job that sets no parameter. Pure.

A tenant pays for a turn by it (``omni_jobs.jobs.order.turns``), so that a few large jobs weigh as much as many small
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from omni_jobs.media.info import SAMPLING_RATE, AudioInfo, ImageInfo, MediaInfo

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig

LEAST: Final = 0.25
"""The cost of the smallest job, because what its prompt takes does not shrink with it."""

MOST: Final = 1000.0

USUAL_PROMPT: Final = 1024
"""The tokens of a prompt that the cost of 1 covers."""

TOKENS_OF_COST_1: Final = 4096
"""So many further tokens cost one more, as 1,024 tokens to make do, because a model reads faster than it writes."""

_BYTES_OF_TEXT_A_TOKEN: Final = 4
_TOKENS_A_SECOND: Final = 50  # of sound: the positions of Whisper's encoder
_PIXELS_A_TOKEN: Final = 28 * 28  # of Qwen's vision encoders, which take the frames of a video in pairs
_PIXELS: Final = "pixels"


def cost_of(
    stages: Sequence[StageConfig], parameters: Mapping[str, Mapping[str, Any]], prompt_tokens: float = 0.0
) -> float:
    """Return the cost of a job: 1 with the pipeline's own parameters and a usual prompt; from LEAST to MOST.

    Each TOKENS_OF_COST_1 of ``prompt_tokens`` beyond USUAL_PROMPT add 1, because a model reads the whole prompt,
    however little it makes of it. ``parameters`` are those that the job sets, by stage, and have been checked. A stage
    costs the product of its ``StageParameters.work``, each by its default, and the job costs as much as its dearest
    stage: there it stands in others' way most. The pixels of a picture count at every stage, whichever one they are set
    for, because the picture goes through all of them. Stages whose parameters declare no ``work`` do not count; of
    these alone a job costs 1.
    """
    costs: list[float] = []
    pixels: list[float] = []
    for stage in stages:
        work = stage.parameters_type.work
        if not work:
            continue
        cost = 1.0
        if given := parameters.get(stage.name):
            chosen, usual = stage.parameters_with(given), stage.parameters_with({})
            for name, if_none in work.items():
                ratio = _amount(chosen, name, if_none) / _amount(usual, name, if_none)
                if name == _PIXELS:
                    pixels.append(ratio)
                else:
                    cost *= ratio
        costs.append(cost)
    made = max(LEAST, max(costs, default=1.0) * max(pixels, default=1.0))
    return min(MOST, made + max(0.0, prompt_tokens - USUAL_PROMPT) / TOKENS_OF_COST_1)


def estimated_tokens(text_bytes: int, media: Iterable[MediaInfo]) -> float:
    """Estimate the tokens of a prompt from the bytes of its text and from its media, for any model."""
    return text_bytes / _BYTES_OF_TEXT_A_TOKEN + sum(map(_tokens_of, media))


def _tokens_of(medium: MediaInfo) -> float:
    if isinstance(medium, AudioInfo):
        return medium.samples / SAMPLING_RATE * _TOKENS_A_SECOND
    pixels = medium.width * medium.height
    return pixels / _PIXELS_A_TOKEN * (1 if isinstance(medium, ImageInfo) else medium.frames / 2)


def _amount(parameters: object, name: str, if_none: int) -> float:
    """Return a number of the parameters, at least 1, because nothing is free."""
    amount = getattr(parameters, name)
    return max(1.0, float(if_none if amount is None else amount))
