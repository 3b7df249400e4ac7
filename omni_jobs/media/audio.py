"""Decode sound to mono float32 at a model's sampling rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import SAMPLING_RATE, AudioInfo
from omni_jobs.media.mono import mono
from omni_jobs.media.sound import Sound, opened_sound

if TYPE_CHECKING:
    from omni_jobs.media.media_limits import MediaLimits

MIN_S = 0.1
_LOUDEST = 100.0  # full scale is 1; samples far beyond it are no audio


def header_of_audio(data: bytes | memoryview, limits: MediaLimits) -> AudioInfo:
    """Return a sound's AudioInfo by its header alone: its length, or the least allowed where the header states none.

    Raise InvalidRequest for a header that is wrong, RequestTooLarge for a sound that is too long.
    """
    with opened_sound(data, limits) as sound:
        _check_length(sound, sound.least, limits)
        frames = sound.least or math.ceil(MIN_S * sound.rate)
        return AudioInfo(sound.media_type, -(-frames * SAMPLING_RATE // sound.rate))


def probe_audio(data: bytes | memoryview, limits: MediaLimits, *, enough_s: float | None = None) -> AudioInfo:
    """Decode a sound, not much more than ``enough_s`` seconds of it, and return the AudioInfo of what was decoded.

    Raise InvalidRequest and RequestTooLarge as ``decode_audio`` does, and InvalidRequest for too short a sound.
    """
    with opened_sound(data, limits) as sound:
        samples = _decoded(sound, SAMPLING_RATE, limits, enough_s)
        if len(samples) < MIN_S * SAMPLING_RATE:
            raise InvalidRequest(f"the audio lasts {len(samples) / SAMPLING_RATE:.3f} s; at least {MIN_S} s are needed")
        return AudioInfo(sound.media_type, len(samples))


def decode_audio(data: bytes | memoryview, sampling_rate: int, limits: MediaLimits) -> np.ndarray[Any, Any]:
    """Return a sound as float32 [T], full scale 1: its channels mixed to one, resampled to ``sampling_rate`` Hz.

    T is the number of frames times the ratio of the rates, rounded up. Raise InvalidRequest for bytes that are no
    audio, are cut off or do not decode, or for a rate or number of channels that is not allowed, and RequestTooLarge
    for a sound that is too long.
    """
    with opened_sound(data, limits) as sound:
        return _decoded(sound, sampling_rate, limits)


def _decoded(
    sound: Sound, sampling_rate: int, limits: MediaLimits, enough_s: float | None = None
) -> np.ndarray[Any, Any]:
    """Decode a sound, up to the first block that ends more than one second after ``enough_s``."""
    _check_length(sound, sound.least, limits)
    blocks = mono(_checked(sound, limits, enough_s), sound.rate)
    resampled = list(_resampled(blocks, sound.rate, sampling_rate))
    return np.concatenate(resampled) if resampled else np.zeros(0, np.float32)


def _check_length(sound: Sound, frames: int, limits: MediaLimits) -> None:
    duration_s = frames / sound.rate
    if duration_s > limits.max_audio_s:
        raise RequestTooLarge(
            f"the audio lasts {duration_s:.1f} s; at most {limits.max_audio_s:g} s are taken (max_audio_s)"
        )
    samples = frames * sound.channels
    if samples > limits.max_audio_samples:
        raise RequestTooLarge(
            f"the audio has {samples} samples or more in {sound.channels} channels;"
            f" at most {limits.max_audio_samples} are taken (max_audio_samples)"
        )


def _checked(sound: Sound, limits: MediaLimits, enough_s: float | None) -> Iterator[np.ndarray[Any, Any]]:
    """Yield a sound's blocks. Raise InvalidRequest and RequestTooLarge for what only they show."""
    frames = 0
    for block in sound.blocks:
        if not np.abs(block).max() <= _LOUDEST:  # false for NaN too
            raise InvalidRequest("the audio has samples that are not numbers within full scale")
        frames += len(block)
        _check_length(sound, frames, limits)
        yield block
        if enough_s is not None and frames > (enough_s + 1) * sound.rate:
            return
    if not frames:
        raise InvalidRequest("the audio has no samples")
    if frames < sound.least:
        raise InvalidRequest(f"the audio is cut off: {frames} of its {sound.frames} frames are there")


def _resampled(blocks: Iterator[np.ndarray[Any, Any]], rate: int, target_rate: int) -> Iterator[np.ndarray[Any, Any]]:
    if rate == target_rate:
        yield from blocks
        return
    resampler = av.AudioResampler(format="flt", layout="mono", rate=target_rate)
    read = written = 0
    for block in blocks:
        frame = av.AudioFrame.from_ndarray(block[None, :], format="flt", layout="mono")
        frame.sample_rate = rate
        frame.pts = read
        frame.time_base = Fraction(1, rate)
        read += len(block)
        for resampled in resampler.resample(frame):
            written += resampled.samples
            yield resampled.to_ndarray()[0]
    # The resampler's delay decides how much it returns at the end: cut or fill that to the documented length.
    missing = -(-read * target_rate // rate) - written
    for resampled in resampler.resample(None):
        piece = resampled.to_ndarray()[0][:missing]
        missing -= len(piece)
        yield piece
    if missing > 0:
        yield np.zeros(missing, np.float32)
