"""Mix the channels of a sound to one, so that nothing that is heard is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

# Channels that have nothing in common leave a mean of this power: the sum of theirs, over their number squared. Where
# the mean has less than a tenth of it, they cancel each other, as those of a microphone that is wired the wrong way do.
_CANCELLED = 0.1
_FADE_S = 0.02


def mono(blocks: Iterator[np.ndarray[Any, Any]], rate: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield for each block float32 [F, C] one of [F]: the mean of its channels, or the loudest where they cancel out.

    It goes over from the one to the other within 20 ms at the block's begin.
    """
    before: np.ndarray[Any, Any] | None = None
    for block in blocks:
        if block.shape[1] == 1:
            yield block[:, 0]
            continue
        weights = _weights(block)
        mixed = block @ weights
        if before is not None and not np.array_equal(before, weights):
            frames = min(len(block), max(1, round(_FADE_S * rate)))
            share = np.linspace(0, 1, frames, dtype=np.float32)
            mixed[:frames] = share * mixed[:frames] + (1 - share) * (block[:frames] @ before)
        before = weights
        yield mixed


def _weights(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the share of each channel, float32 [C]."""
    channels = block.shape[1]
    even = np.full(channels, 1 / channels, np.float32)
    powers = np.einsum("fc,fc->c", block, block, dtype=np.float64)
    mean = block @ even
    if np.dot(mean, mean) >= _CANCELLED * powers.sum() / channels**2:
        return even
    loudest = np.zeros(channels, np.float32)
    loudest[int(powers.argmax())] = 1
    return loudest
