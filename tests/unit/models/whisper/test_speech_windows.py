"""workers.models.whisper.speech_windows: a recording is cut at its pauses, and what is no speech is left out."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faster_whisper")
from numpy.typing import NDArray

from tests.spoken import SAMPLING_RATE, noise, silence, speech, tune
from workers.models.whisper.speech_windows import WINDOW_S, Window, next_window

TEXT = "The train to the coast leaves at seven in the morning, and nobody on it has had a cup of coffee yet."


def windows(samples: NDArray[Any], threshold: float = 0.5) -> list[Window]:
    found: list[Window] = []
    begin = 0
    while begin < len(samples):
        found.append(next_window(samples, begin, threshold))
        assert found[-1].next > begin
        assert found[-1].begin >= begin
        assert found[-1].end - found[-1].begin <= WINDOW_S * SAMPLING_RATE
        begin = found[-1].next
    return found


@pytest.mark.parametrize("sound", [silence(40), noise(40), noise(0.05), silence(0.05), np.zeros(1, np.float32)])
def test_what_is_no_speech_has_no_windows(sound: NDArray[Any]) -> None:
    assert all(window.begin == window.end and window.spoken == 0 for window in windows(sound))


def test_speech_between_tune_and_silence_is_found() -> None:
    said = speech(TEXT)
    sound = np.concatenate([silence(20), said, silence(15), tune(6)])
    [found] = [window for window in windows(sound) if window.end > window.begin]
    assert found.begin == pytest.approx(20 * SAMPLING_RATE, abs=0.5 * SAMPLING_RATE)
    assert found.end == pytest.approx(20 * SAMPLING_RATE + len(said), abs=0.7 * SAMPLING_RATE)
    assert found.spoken > 0.6 * len(said)


def test_long_speech_is_cut_in_pauses_and_nothing_is_lost() -> None:
    pause = silence(0.6)
    said = [speech(TEXT, seed) for seed in range(12)]
    sound = np.concatenate([piece for each in said for piece in (each, pause)])
    found = windows(sound)
    assert len(found) >= 3
    for before, after in pairwise(found):
        assert before.end <= before.next <= after.begin
        assert np.abs(sound[before.next - 800 : before.next + 800]).max() < 0.01  # 0.1 s of a pause
    assert sum(window.spoken for window in found) > 0.7 * len(sound)


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    said = speech("No pause stands in this sentence.")
    loud = np.flatnonzero(np.abs(said) > 0.02)
    once = said[loud[0] : loud[-1]]
    sound = np.tile(once, 45 * SAMPLING_RATE // len(once))
    found = windows(sound, threshold=0.05)
    spoken = [window for window in found if window.spoken]
    assert len(spoken) >= 2
    assert all(window.end > window.begin for window in spoken)
    assert sum(window.spoken for window in spoken) > 0.9 * len(sound)


def test_a_stricter_threshold_finds_no_more() -> None:
    sound = np.concatenate([speech(TEXT), tune(8, seed=3)])
    spoken = [sum(window.spoken for window in windows(sound, threshold)) for threshold in (0.1, 0.5, 0.9)]
    assert spoken[0] >= spoken[1] >= spoken[2] > 0
