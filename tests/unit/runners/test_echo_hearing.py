import numpy as np
import pytest

from workers.runners.echo.hearing import HEARD_HZ, heard, loudest
from workers.transcripts.transcript import Word


def sine(hertz: float, seconds: float, loudness: float = 0.5) -> np.ndarray:
    at = np.arange(round(seconds * HEARD_HZ)) / HEARD_HZ
    return (loudness * np.sin(2 * np.pi * hertz * at)).astype(np.float32)


@pytest.mark.parametrize("hertz", [60, 220, 439, 440, 441, 997, 3000, 7900])
@pytest.mark.parametrize("seconds", [0.1, 0.5, 0.74])
def test_a_tone_is_heard_to_the_hertz(hertz: int, seconds: float) -> None:
    assert loudest(sine(hertz, seconds)) == hertz


def test_the_louder_of_two_tones_is_heard_through_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, HEARD_HZ // 2)
    assert loudest(sine(523, 0.5) + sine(1000, 0.5, 0.3) + noise) == 523


def test_what_is_too_soft_is_silence() -> None:
    assert loudest(sine(440, 0.5, 0.001)) is None
    assert loudest(np.zeros(1, np.float32)) is None


def test_a_segment_lasts_as_long_as_its_tone() -> None:
    sound = np.concatenate([sine(440, 1), np.zeros(HEARD_HZ, np.float32), sine(880, 1.6)])
    assert [(one.start_s, one.end_s, one.text) for one in heard(sound, words=False)] == [
        (0.0, 1.0, " 440 Hz for 1.00 s"),
        (1.0, 2.0, " silence for 1.00 s"),
        (2.0, 3.6, " 880 Hz for 1.60 s"),
    ]


def test_words_share_the_time_of_their_segment() -> None:
    [segment] = heard(sine(440, 1), words=True)
    assert "".join(word.text for word in segment.words) == segment.text
    assert segment.words[0] == Word(0.0, 0.2, " 440")
    assert segment.words[-1] == Word(0.8, 1.0, " s")


def test_nothing_is_heard_in_no_sound() -> None:
    assert heard(np.empty(0, np.float32), words=True) == []
