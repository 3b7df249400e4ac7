"""Windows of speech: a recording is cut at its pauses into pieces that Whisper takes whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps  # type: ignore[import-untyped]

from workers.models.whisper.whisper_prompt import SAMPLING_RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_S = 30
"""The seconds of sound that Whisper's encoder takes at a time."""

_WINDOW = WINDOW_S * SAMPLING_RATE
_OVERLAP = SAMPLING_RATE  # a word may have begun at the end of a window in which no speech was found
_QUIET_FRAMES = 50  # of 0.1 s, at the end of a window without a pause, of which the quietest is its end
_FRAME = SAMPLING_RATE // 10

# In 72 clips of synthetic music the detector hears speech in 11 with this least length, and in 56 with none; a single
# "no" or "hi" is found with both.
_MIN_SPEECH_MS = 250
_MIN_PAUSE_MS = 160
_PADDING = SAMPLING_RATE // 4  # of sound around the speech, where words begin and end softly


class Window(NamedTuple):
    """A piece of a recording, in samples from its begin.

    begin, end  of the speech in it; equal where there is none
    spoken      samples in it in which somebody speaks
    next        where the next window begins
    """

    begin: int
    end: int
    spoken: int
    next: int


def next_window(samples: NDArray[Any], begin: int, threshold: float) -> Window:
    """Return which samples of a recording, float32 [T] at 16 kHz, are to be transcribed next, at most 30 s.

    ``Transcriber.hear`` calls it with the last window's ``next`` as ``begin``, until the recording ends. A window ends
    in the longest pause of its second half, so that no word is cut. ``threshold``: how sure the detector must be that
    somebody speaks, 0 … 1.
    """
    piece = samples[begin : begin + _WINDOW]
    end = begin + len(piece)
    is_last = end == len(samples)
    spans = [(begin + span["start"], begin + span["end"]) for span in _speech(piece, threshold)]
    if not spans:
        return Window(begin, begin, 0, end if is_last else end - _OVERLAP)
    if is_last:
        following = end
    elif spans[-1][1] < end - _OVERLAP:
        following = end - _OVERLAP
    elif len(spans) > 1:
        kept = _last_before_pause(spans, begin + _WINDOW // 2)
        following = (spans[kept - 1][1] + spans[kept][0]) // 2
        spans = spans[:kept]
    else:
        following = min(spans[0][1], _quietest(piece, begin))
        spans = [(spans[0][0], following)]
    return Window(
        begin=max(begin, spans[0][0] - _PADDING),
        end=min(following, spans[-1][1] + _PADDING),
        spoken=sum(end - begin for begin, end in spans),
        next=following,
    )


def _speech(piece: NDArray[Any], threshold: float) -> list[dict[str, int]]:
    options = VadOptions(
        threshold=threshold,
        min_speech_duration_ms=_MIN_SPEECH_MS,
        min_silence_duration_ms=_MIN_PAUSE_MS,
        speech_pad_ms=0,
    )
    spans: list[dict[str, int]] = get_speech_timestamps(piece, options)
    return spans


def _last_before_pause(spans: list[tuple[int, int]], middle: int) -> int:
    """Return how many spans stand before the longest pause behind ``middle``; before the last pause if none is."""
    late = [number for number in range(1, len(spans)) if spans[number - 1][1] >= middle]
    return max(late, key=lambda number: spans[number][0] - spans[number - 1][1], default=len(spans) - 1)


def _quietest(piece: NDArray[Any], begin: int) -> int:
    frames = piece[-_QUIET_FRAMES * _FRAME :].reshape(_QUIET_FRAMES, _FRAME)
    loudness = np.square(frames).sum(axis=1)
    return begin + len(piece) - _QUIET_FRAMES * _FRAME + int(np.argmin(loudness)) * _FRAME + _FRAME // 2
