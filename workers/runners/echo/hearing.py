"""``heard``: what sounds in a recording and when, the loudest frequency of each half second.

The frequency is that of the highest peak of a window's spectrum (Hann's window, a parabola through the logarithms of
the peak and its neighbours). That of a tone is found to a tenth of a Hz.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workers.transcripts.transcript import Segment, Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEARD_HZ: Final = 16_000
"""The sampling rate of the sound that ``heard`` takes."""

_WINDOW = HEARD_HZ // 2  # samples; the last window has up to half as many more, because it takes the rest
_SPECTRUM = 1 << 14  # samples, more than the longest window: its points lie 1 Hz apart
_SILENCE = 1e-3  # of full scale, root mean square
_EVEN = 1e-9  # added to a spectrum, so that the logarithm of 0 is none


def heard(samples: NDArray[Any], *, words: bool) -> Sequence[Segment]:
    """Return the segments of a recording, float32 [T] at ``HEARD_HZ``, which is whole in them; none of one without T.

    A segment says " 440 Hz for 2.50 s" or " silence for 1.00 s". Its ``words`` have equal shares of its time.
    """
    spans = [(loudest(samples[begin:end]), begin, end) for begin, end in _windows(len(samples))]
    segments = []
    for hertz, group in groupby(spans, key=lambda span: span[0]):
        same = list(group)
        begin_s, end_s = same[0][1] / HEARD_HZ, same[-1][2] / HEARD_HZ
        name = "silence" if hertz is None else f"{hertz} Hz"
        text = f" {name} for {end_s - begin_s:.2f} s"
        segments.append(Segment(begin_s, end_s, text, _words(text, begin_s, end_s) if words else ()))
    return segments


def loudest(window: NDArray[Any]) -> int | None:
    """Return the loudest frequency of at most 16,384 samples in whole Hz; None: they are silent."""
    if np.sqrt(np.mean(np.square(window, dtype=np.float64))) < _SILENCE:
        return None
    spectrum = np.abs(np.fft.rfft(window * np.hanning(len(window)), _SPECTRUM)) + _EVEN
    peak = int(np.argmax(spectrum[1:-1])) + 1
    before, at, after = np.log(spectrum[peak - 1 : peak + 2])
    bend = before - 2 * at + after
    offset = (before - after) / (2 * bend) if bend else 0.0
    return round(float(peak + offset) * HEARD_HZ / _SPECTRUM)


def _windows(samples: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each window."""
    count = max(1, round(samples / _WINDOW)) if samples else 0
    for number in range(count):
        yield number * _WINDOW, samples if number == count - 1 else (number + 1) * _WINDOW


def _words(text: str, begin_s: float, end_s: float) -> Sequence[Word]:
    words = text.split()
    share = (end_s - begin_s) / len(words)
    ends = [round(begin_s + number * share, 3) for number in range(len(words) + 1)]
    return [Word(begin, end, f" {word}") for begin, end, word in zip(ends[:-1], ends[1:], words, strict=True)]
