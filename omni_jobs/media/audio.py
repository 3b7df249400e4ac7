"""Decode WAV, FLAC, MP3 and Ogg with libsndfile to mono float32 at a model's sampling rate."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import soundfile  # type: ignore[import-untyped]

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import SAMPLING_RATE, AudioInfo

if TYPE_CHECKING:
    from omni_jobs.media.limits import MediaLimits

MIN_S = 0.1
_MIN_RATE = 4_000
_LOUDEST = 100.0  # full scale is 1; samples far beyond it are no audio
_BLOCK = 1 << 16  # frames decoded at a time

# A WAV that was written to a pipe states a wrong size, about 2 or 4 GiB or 0, because its writer could not seek.
_UNKNOWN_SIZES = (0, 0x7FFF_0000)


def header_of_audio(data: bytes | memoryview, limits: MediaLimits) -> AudioInfo:
    """Return a sound's AudioInfo by its header alone: its length, or the least allowed where the header states none.

    Raise InvalidRequest for a header that is wrong, RequestTooLarge for a sound that is too long.
    """
    media_type = _media_type(data)
    with _opened(data, media_type, limits) as file:
        frames = file.frames if _length_is_known(file) else math.ceil(MIN_S * file.samplerate)
        return AudioInfo(media_type, -(-frames * SAMPLING_RATE // file.samplerate))


def probe_audio(data: bytes | memoryview, limits: MediaLimits, *, enough_s: float | None = None) -> AudioInfo:
    """Decode a sound, not much more than ``enough_s`` seconds of it, and return the AudioInfo of what was decoded.

    Raise InvalidRequest and RequestTooLarge as ``decode_audio`` does, and InvalidRequest for too short a sound.
    """
    samples = decode_audio(data, SAMPLING_RATE, limits=limits, enough_s=enough_s)
    if len(samples) < MIN_S * SAMPLING_RATE:
        raise InvalidRequest(f"the audio lasts {len(samples) / SAMPLING_RATE:.3f} s; at least {MIN_S} s are needed")
    return AudioInfo(_media_type(data), len(samples))


def decode_audio(
    data: bytes | memoryview,
    sampling_rate: int,
    *,
    limits: MediaLimits | None = None,
    enough_s: float | None = None,
) -> np.ndarray[Any, Any]:
    """Return a sound as float32 [T], full scale 1: the mean of its channels, resampled to ``sampling_rate`` Hz.

    T is the number of frames times the ratio of the rates, rounded up. ``limits`` None sets no bound. Decoding stops
    at the first block that ends more than one second after ``enough_s``. Raise InvalidRequest for bytes that are no
    audio, are cut off or do not decode, or for a rate or number of channels that is not allowed, and RequestTooLarge
    for a sound that is too long.
    """
    with _opened(data, _media_type(data), limits) as file:
        resampled = list(_resampled(_mono_blocks(file, limits, enough_s), file.samplerate, sampling_rate))
    return np.concatenate(resampled) if resampled else np.zeros(0, np.float32)


@contextmanager
def _opened(data: bytes | memoryview, media_type: str, limits: MediaLimits | None) -> Iterator[soundfile.SoundFile]:
    """Open a sound for a block and check its header; raise libsndfile's errors in the block as InvalidRequest."""
    _refuse_cut_off_wav(data, media_type)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file, limits)
            yield file
    except soundfile.LibsndfileError as error:
        raise InvalidRequest(f"the audio does not decode: {error.error_string}") from None


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
    """Raise InvalidRequest for a WAV without its end, because libsndfile reads one without an error."""
    at = 12
    while media_type == "audio/wav" and at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data":
            present = len(data) - at - 8
            if size > present and size != _UNKNOWN_SIZES[0] and size < _UNKNOWN_SIZES[1]:
                raise InvalidRequest(f"the WAV is cut off: {present} of its {size} bytes of samples are there")
            return
        at += 8 + size + size % 2
    if media_type == "audio/wav":
        raise InvalidRequest("the WAV is cut off: it has no data chunk")


def _check_header(file: soundfile.SoundFile, limits: MediaLimits | None) -> None:
    if limits is None:
        return
    if not _MIN_RATE <= file.samplerate <= limits.max_audio_rate:
        raise InvalidRequest(f"{file.samplerate} Hz; {_MIN_RATE} to {limits.max_audio_rate} Hz are taken")
    if file.channels > limits.max_audio_channels:
        raise InvalidRequest(f"{file.channels} channels; at most {limits.max_audio_channels} are taken")
    if _length_is_known(file):
        _check_length(file, file.frames, limits)


def _length_is_known(file: soundfile.SoundFile) -> bool:
    return file.format in ("WAV", "WAVEX", "FLAC") and 0 < file.frames < 1 << 62


def _check_length(file: soundfile.SoundFile, frames: int, limits: MediaLimits) -> None:
    duration_s = frames / file.samplerate
    if duration_s > limits.max_audio_s:
        raise RequestTooLarge(f"the audio lasts {duration_s:.1f} s; at most {limits.max_audio_s:g} s are taken")
    samples = frames * file.channels
    if samples > limits.max_audio_samples:
        raise RequestTooLarge(
            f"the audio has {samples} samples or more in {file.channels} channels;"
            f" at most {limits.max_audio_samples} are taken"
        )


def _mono_blocks(
    file: soundfile.SoundFile, limits: MediaLimits | None, enough_s: float | None
) -> Iterator[np.ndarray[Any, Any]]:
    frames = 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        if not np.abs(block).max() <= _LOUDEST:  # false for NaN too
            raise InvalidRequest("the audio has samples that are not numbers within full scale")
        frames += len(block)
        if limits is not None:
            _check_length(file, frames, limits)
        yield block.mean(axis=1, dtype=np.float32)
        if enough_s is not None and frames > (enough_s + 1) * file.samplerate:
            return
    if not frames:
        raise InvalidRequest("the audio has no samples")
    if _length_is_known(file) and frames < file.frames:
        raise InvalidRequest(f"the audio is cut off: {frames} of its {file.frames} frames are there")


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
