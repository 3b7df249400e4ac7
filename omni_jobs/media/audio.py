"""Audio: WAV, FLAC, MP3 and Ogg through libsndfile → mono float32 at the model's rate."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import soundfile  # type: ignore[import-untyped]

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import SAMPLING_RATE, AudioInfo

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = ["decode_audio", "probe_audio"]

MIN_S = 0.1
_RATES = range(4_000, 384_001)
_MAX_CHANNELS = 16
_LOUDEST = 100.0  # full scale is 1; what is far beyond is no audio
_BLOCK = 1 << 16  # frames decoded at a time

# A WAV written to a pipe cannot know its length: its size says about 2 or 4 GiB, or 0.
_UNKNOWN_SIZES = (0, 0x7FFF_0000)


def probe_audio(data: bytes | memoryview, settings: Settings, sampling_rate: int = SAMPLING_RATE) -> AudioInfo:
    """Decode it all, keep its length. Raises InvalidRequest or RequestTooLarge."""
    samples = decode_audio(data, sampling_rate, max_s=settings.max_audio_s)
    if len(samples) < MIN_S * sampling_rate:
        raise InvalidRequest(f"the audio lasts {len(samples) / sampling_rate:.3f} s; at least {MIN_S} s are needed")
    return AudioInfo(_media_type(data), len(samples), sampling_rate)


def decode_audio(data: bytes | memoryview, sampling_rate: int, *, max_s: float | None = None) -> np.ndarray[Any, Any]:
    """float32 [T] in -1 … 1: the mean of the channels, resampled (libswresample) to ``sampling_rate``.

    T is the number of frames times the ratio of the rates, rounded up. ``max_s`` bounds the
    duration. Raises InvalidRequest for what is no audio, is cut off, or does not decode;
    RequestTooLarge for what is too long.
    """
    _refuse_cut_off_wav(data, _media_type(data))
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file, max_s)
            resampled = list(_resampled(_mono_blocks(file, max_s), file.samplerate, sampling_rate))
    except soundfile.LibsndfileError as error:
        raise InvalidRequest(f"the audio does not decode: {error.error_string}") from None
    return np.concatenate(resampled) if resampled else np.zeros(0, np.float32)


def _media_type(data: bytes | memoryview) -> str:
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "audio/wav"
    if head[:4] == b"fLaC":
        return "audio/flac"
    if head[:4] == b"OggS":
        return "audio/ogg"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return "audio/mpeg"
    raise InvalidRequest("not audio this server knows: WAV, FLAC, MP3 or Ogg")


def _refuse_cut_off_wav(data: bytes | memoryview, media_type: str) -> None:
    """libsndfile reads a WAV whose end is missing without a word."""
    at = 12
    while media_type == "audio/wav" and at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data":
            left = len(data) - at - 8
            if size > left and size != _UNKNOWN_SIZES[0] and size < _UNKNOWN_SIZES[1]:
                raise InvalidRequest(f"the WAV is cut off: {left} of its {size} bytes of samples are there")
            return
        at += 8 + size + size % 2
    if media_type == "audio/wav":
        raise InvalidRequest("the WAV is cut off: it has no data chunk")


def _check_header(file: soundfile.SoundFile, max_s: float | None) -> None:
    if file.samplerate not in _RATES:
        raise InvalidRequest(f"{file.samplerate} Hz; {_RATES[0]} to {_RATES[-1]} Hz are taken")
    if file.channels > _MAX_CHANNELS:
        raise InvalidRequest(f"{file.channels} channels; at most {_MAX_CHANNELS} are taken")
    if max_s is not None and _length_is_known(file):
        _check_duration(file.frames / file.samplerate, max_s)


def _length_is_known(file: soundfile.SoundFile) -> bool:
    return file.format in ("WAV", "WAVEX", "FLAC") and 0 < file.frames < 1 << 62


def _check_duration(duration_s: float, max_s: float) -> None:
    if duration_s > max_s:
        raise RequestTooLarge(f"the audio lasts {duration_s:.1f} s; at most {max_s:g} s are taken")


def _mono_blocks(file: soundfile.SoundFile, max_s: float | None) -> Iterator[np.ndarray[Any, Any]]:
    frames = 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        if not np.abs(block).max() <= _LOUDEST:  # NaN is not
            raise InvalidRequest("the audio has samples that are not numbers within full scale")
        frames += len(block)
        if max_s is not None:
            _check_duration(frames / file.samplerate, max_s)
        yield block.mean(axis=1, dtype=np.float32)
    if not frames:
        raise InvalidRequest("the audio has no samples")
    if _length_is_known(file) and frames < file.frames:
        raise InvalidRequest(f"the audio is cut off: {frames} of its {file.frames} frames are there")


def _resampled(blocks: Iterator[np.ndarray[Any, Any]], rate: int, wanted: int) -> Iterator[np.ndarray[Any, Any]]:
    if rate == wanted:
        yield from blocks
        return
    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted)
    taken = given = 0
    for block in blocks:
        frame = av.AudioFrame.from_ndarray(block[None, :], format="flt", layout="mono")
        frame.sample_rate = rate
        frame.pts = taken
        frame.time_base = Fraction(1, rate)
        taken += len(block)
        for made in resampler.resample(frame):
            given += made.samples
            yield made.to_ndarray()[0]
    # The resampler's delay decides how much comes out at the end: the length is ours.
    left = -(-taken * wanted // rate) - given
    for made in resampler.resample(None):
        piece = made.to_ndarray()[0][:left]
        left -= len(piece)
        yield piece
    if left > 0:
        yield np.zeros(left, np.float32)
