"""A later stage gets the samples of a WAV, whatever form a server writes them in: those that libsndfile reads."""

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_jobs.errors import ModelError
from omni_jobs.media.audio import decode_audio
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.settings import Settings
from workers.runners.remote.wav import decode_wav

RATE = 16_000
TONE = (0.6 * np.sin(np.arange(4000) * 0.05)).astype(np.float32)


def written(subtype: str, channels: int = 1, format: str = "WAV", samples: Any = TONE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.repeat(samples[:, None], channels, axis=1), RATE, subtype=subtype, format=format)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("format", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_samples_are_those_of_libsndfile(subtype: str, format: str, channels: int) -> None:
    data = written(subtype, channels, format)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float64", always_2d=True)
    samples, rate = decode_wav(memoryview(data))
    assert (samples.dtype, samples.shape, rate) == (np.float32, TONE.shape, RATE)
    np.testing.assert_allclose(samples, expected.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("subtype", ["PCM_U8", "ULAW", "ALAW"])
def test_every_code_has_its_value(subtype: str) -> None:
    data = bytearray(written(subtype, samples=TONE[:256]))
    begin = data.index(b"data") + 8
    data[begin : begin + 256] = bytes(range(256))
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float64")
    np.testing.assert_allclose(decode_wav(memoryview(data))[0], expected, atol=1e-6)


@pytest.mark.parametrize("stated", [0, 0x7FFFFFFF, 0xFFFFFFFF, 2_000_000_000, 9000])
def test_a_size_that_its_writer_did_not_know_means_to_the_end(stated: int) -> None:
    data = bytearray(written("PCM_16"))
    struct.pack_into("<I", data, data.index(b"data") + 4, stated)
    assert len(decode_wav(memoryview(data))[0]) == len(TONE)


def test_chunks_around_the_samples_are_no_samples() -> None:
    data = written("PCM_16")
    at = data.index(b"data")
    more = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    samples, _ = decode_wav(memoryview(data[:at] + more + data[at:] + more))
    np.testing.assert_allclose(samples, TONE, atol=1e-4)


def test_samples_beyond_full_scale_are_cut() -> None:
    samples, _ = decode_wav(memoryview(written("FLOAT", samples=4 * TONE)))
    assert (samples.min(), samples.max()) == (-1.0, 1.0)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_far_beyond_full_scale_are_cut(subtype: str) -> None:
    largest = np.finfo(np.float32 if subtype == "FLOAT" else np.float64).max
    samples, _ = decode_wav(memoryview(written(subtype, 2, samples=np.array([largest, -largest, 0.5]))))
    np.testing.assert_array_equal(samples, np.array([1.0, -1.0, 0.5], np.float32))


def opposite(time: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    wave = 0.6 * np.sin(time * 0.05)
    return [wave, -wave]


def opposite_at_first(time: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The one speaker's microphone is wired the wrong way, the other's is not; a block ends in between."""
    wave = 0.6 * np.sin(time * 0.05)
    return [wave, np.where(time < 70_000, -wave, wave), 0.1 * wave]


def alike(time: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [0.5 * np.sin(time * 0.05), 0.3 * np.sin(time * 0.05), 0.7 * np.sin(time * 0.03)]


@pytest.mark.parametrize("made", [opposite, opposite_at_first, alike])
def test_channels_are_mixed_as_those_of_a_job_s_sound(made: Callable[[Any], list[np.ndarray[Any, Any]]]) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.stack(made(np.arange(100_000)), axis=1), RATE, subtype="FLOAT", format="WAV")
    samples, _ = decode_wav(memoryview(file.getvalue()))
    np.testing.assert_allclose(samples, decode_audio(file.getvalue(), RATE, MediaLimits.of(Settings())), atol=1e-6)
    assert np.abs(samples[-16_000:]).max() > 0.2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match="no numbers"):
        decode_wav(memoryview(written("FLOAT", samples=np.array([0.0, bad, 0.0], np.float32))))


@pytest.mark.parametrize("length", [12, 20, 30, 43])
def test_a_wav_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(ModelError, match="WAV"):
        decode_wav(memoryview(written("PCM_16")[:length]))


@pytest.mark.parametrize(
    ("offset", "value", "message"), [(20, 17, "format 17"), (22, 0, "0 channels"), (34, 12, "12 bits"), (24, 3, "3 Hz")]
)
def test_other_forms_are_refused(offset: int, value: int, message: str) -> None:
    data = bytearray(written("PCM_16"))
    struct.pack_into("<H", data, offset, value)
    with pytest.raises(ModelError, match=message):
        decode_wav(memoryview(data))
