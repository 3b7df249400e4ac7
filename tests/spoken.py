"""Sounds for tests: speech of a text by the package's own call, noise, and a tune."""

import io
from functools import cache
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from omni_jobs.media.audio import decode_audio
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.settings import Settings

SAMPLING_RATE = 16_000


@cache
def hibari() -> Any:
    """Return the package's own voice, loaded once."""
    from hibari import Hibari

    return Hibari(threads=1)


def speech(text: str, seed: int = 0) -> NDArray[Any]:
    """Return a text as speech, float32 [T] at 16 kHz."""
    return decode_audio(wav(hibari()(text, seed=seed), 24_000), SAMPLING_RATE, MediaLimits.of(Settings()))


def wav(samples: NDArray[Any], rate: int = SAMPLING_RATE) -> bytes:
    """Return samples as the bytes of a WAV."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def silence(seconds: float) -> NDArray[Any]:
    """Return silence, float32 [T] at 16 kHz."""
    return np.zeros(round(seconds * SAMPLING_RATE), np.float32)


def noise(seconds: float, seed: int = 0) -> NDArray[Any]:
    """Return loud white noise, float32 [T] at 16 kHz."""
    drawn = np.random.default_rng(seed).normal(size=round(seconds * SAMPLING_RATE))
    return (0.2 * drawn).astype(np.float32)


def tune(seconds: float, seed: int = 0) -> NDArray[Any]:
    """Return a tune of plucked notes over drums, float32 [T] at 16 kHz, as loud as music is."""
    drawn = np.random.default_rng(seed)
    sound = np.zeros(round((seconds + 1) * SAMPLING_RATE))
    times = np.arange(SAMPLING_RATE) / SAMPLING_RATE
    for number in range(round(seconds * 2.5)):
        begin = round(number * 0.4 * SAMPLING_RATE)
        pitch = 220 * 2 ** (drawn.choice([0, 2, 3, 5, 7, 8, 10, 12]) / 12)
        overtones = sum(np.sin(2 * np.pi * pitch * n * times) / n for n in range(1, 7))
        drum = drawn.normal(size=SAMPLING_RATE) * np.exp(-40 * times)
        sound[begin : begin + SAMPLING_RATE] += overtones * np.exp(-3 * times) + drum
    sound = sound[: round(seconds * SAMPLING_RATE)]
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)
