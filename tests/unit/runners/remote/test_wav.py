"""A later stage gets the samples of a WAV, whatever form a server writes them in: those that libsndfile reads."""

import io
import struct
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_jobs.errors import ModelError
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
