"""``decode_wav``: the samples of a WAV as servers write it: PCM of 8 to 32 bits, float, A-law and mu-law."""

import struct
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from omni_jobs.media.mono import mono
from workers.runners.remote.failures import bad_answer

_PCM, _FLOAT, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_AT_ONCE = 1 << 16  # frames
_FAR_BEYOND = 100.0  # full scale is 1; with larger samples, sums would overflow
_RATES = range(4_000, 384_001)  # Hz
_MOST_CHANNELS = 64
_MOST_CHUNKS = 1000

Samples = NDArray[np.float32]
_Reader = Callable[[memoryview], NDArray[np.float32] | NDArray[np.float64]]


def decode_wav(data: memoryview) -> tuple[Samples, int]:
    """Return the samples of a WAV, float32 [S] of full scale 1, and its rate in Hz. ``mono`` mixes its channels.

    A size of the samples beyond the end means "to the end", as writers that do not know it state one. Raises ModelError
    for other bytes, for other forms of samples, and for none.
    """
    form: bytes | None = None
    for name, begin, size in _chunks(data):
        if name == b"fmt ":
            form = bytes(data[begin : begin + min(size, 40)])
        elif name == b"data":
            if form is None:
                break
            end = len(data) if size == 0 else min(begin + size, len(data))
            return _samples(form, data[begin:end])
    raise bad_answer("the WAV does not decode: it lacks its format or its samples")


def _chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the place and the stated size of each chunk."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, at)
        yield name, at + 8, size
        at += 8 + size + size % 2


def _samples(form: bytes, data: memoryview) -> tuple[Samples, int]:
    if len(form) < 16:
        raise bad_answer("the WAV does not decode: its format is cut off")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 26:
        (tag,) = struct.unpack_from("<H", form, 24)
    read = _READERS.get((tag, bits))
    if read is None or not 1 <= channels <= _MOST_CHANNELS or rate not in _RATES:
        raise bad_answer(f"a WAV of format {tag}, {bits} bits, {channels} channels and {rate} Hz, which is not read")
    frame = channels * bits // 8
    frames = len(data) // frame
    if not frames:
        raise bad_answer("the WAV has no samples")
    samples = np.empty(frames, np.float32)
    at = 0
    for mixed in mono(_blocks(read, data[: frames * frame], frame, channels), rate):
        np.clip(mixed, -1.0, 1.0, out=samples[at : at + len(mixed)])
        at += len(mixed)
    return samples, rate


def _blocks(read: _Reader, data: memoryview, frame: int, channels: int) -> Iterator[Samples]:
    """Yield the samples in blocks, float32 [F, C]; a frame has ``frame`` bytes. Raises ModelError for NaN, infinity."""
    for begin in range(0, len(data), _AT_ONCE * frame):
        block = read(data[begin : begin + _AT_ONCE * frame]).reshape(-1, channels)
        if not np.isfinite(block).all():
            raise bad_answer("the WAV has samples that are no numbers")
        yield np.clip(block, -_FAR_BEYOND, _FAR_BEYOND).astype(np.float32, copy=False)


def _integers(dtype: str, scale: float) -> _Reader:
    return lambda data: np.frombuffer(data, dtype).astype(np.float32) / np.float32(scale)


def _of_8_bits(data: memoryview) -> NDArray[np.float32]:
    return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)


def _of_24_bits(data: memoryview) -> NDArray[np.float64]:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4").reshape(-1).astype(np.float64) / 2.0**31


def _mu_law() -> NDArray[np.float32]:
    """Return the value of each of the 256 codes of G.711's mu-law."""
    code = ~np.arange(256, dtype=np.uint8)
    size = (((code & 0x0F).astype(np.int32) << 3) + 0x84 << ((code & 0x70) >> 4).astype(np.int32)) - 0x84
    return (np.where(code & 0x80, -size, size) / 32768).astype(np.float32)


def _a_law() -> NDArray[np.float32]:
    """Return the value of each of the 256 codes of G.711's A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    part, exponent = ((code & 0x0F).astype(np.int32) << 4), ((code & 0x70) >> 4).astype(np.int32)
    size = np.where(exponent == 0, part + 8, (part + 0x108) << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, size, -size) / 32768).astype(np.float32)


def _of_codes(values: NDArray[np.float32]) -> _Reader:
    return lambda data: values[np.frombuffer(data, np.uint8)]


def _floats(dtype: str) -> _Reader:
    def read(data: memoryview) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return np.frombuffer(data, dtype).astype(np.float64)

    return read


_READERS: dict[tuple[int, int], _Reader] = {
    (_PCM, 8): _of_8_bits,
    (_PCM, 16): _integers("<i2", 2.0**15),
    (_PCM, 24): _of_24_bits,
    (_PCM, 32): _integers("<i4", 2.0**31),
    (_FLOAT, 32): _floats("<f4"),
    (_FLOAT, 64): _floats("<f8"),
    (_A_LAW, 8): _of_codes(_a_law()),
    (_MU_LAW, 8): _of_codes(_mu_law()),
}
