"""Mix the channels of a sound to one, so that nothing that is heard is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

# Channels that have nothing in common leave a mean of this power: the sum of theirs, over their number squared. Where
# the mean has less than a tenth of it, they cancel each other, as those of a microphone that is wired the wrong way do.
_CANCELLED = 0.1
_FADE_S = 0.02
_WINDOW_S = 0.1  # one speaker may stand at the one microphone, the next at the other


def mono(blocks: Iterator[np.ndarray[Any, Any]], rate: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield for each block float32 [F, C] one of [F]: the mean of its channels, or the loudest where they cancel out.

    That is decided for each tenth of a second. It goes over from the one to the other within 20 ms.
    """
    frames, fade = max(1, round(_WINDOW_S * rate)), max(1, round(_FADE_S * rate))
    before: np.ndarray[Any, Any] | None = None
    for block in blocks:
        if block.shape[1] == 1:
            yield block[:, 0]
            continue
        mixed = np.empty(len(block), np.float32)
        for at in range(0, len(block), frames):
            window, piece = block[at : at + frames], mixed[at : at + frames]
            weights = _weights(window, before)
            np.matmul(window, weights, out=piece)
            if before is not None and not np.array_equal(before, weights):
                faded = min(len(window), fade)
                share = np.linspace(0, 1, faded, dtype=np.float32)
                piece[:faded] = share * piece[:faded] + (1 - share) * (window[:faded] @ before)
            before = weights
        yield mixed


def _weights(window: np.ndarray[Any, Any], before: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Return the share of each channel, float32 [C]: where they cancel out, one, which stays while it is loud."""
    channels = window.shape[1]
    even = np.full(channels, 1 / channels, np.float32)
    powers = np.einsum("fc,fc->c", window, window, dtype=np.float64)
    mean = window @ even
    if np.dot(mean, mean) >= _CANCELLED * powers.sum() / channels**2:
        return even
    if before is not None and before.max() == 1 and 2 * powers @ before >= powers.max():
        return before  # equal channels of opposite phase would turn the sound over and over
    loudest = np.zeros(channels, np.float32)
    loudest[int(powers.argmax())] = 1
    return loudest
