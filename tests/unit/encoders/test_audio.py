"""Waveforms as audio files, decoded again: by libsndfile what FFmpeg wrote, and the other way round."""

import io
import subprocess
import sys
import tracemalloc
import wave
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, ModelError
from workers.encoders.audio import encode_audio

LOSSLESS = ("wav", "flac", "pcm")
LOSSY = ("mp3", "opus", "aac")
FORMATS = (*LOSSLESS, *LOSSY)
FRAME = {"aac": 1024}
AAC_DELAY = 1024


def encoded(samples: Any, rate: Any, format: str) -> bytes:
    return encode_audio({"waveform": samples}, {"sampling_rate": rate}, format)


def chord(size: int, rate: int) -> np.ndarray[Any, Any]:
    """Three tones, of which the highest lies below 3 kHz, as most of speech does."""
    at = np.arange(size) / rate
    return sum(
        a * np.sin(2 * np.pi * f * at + 0.3) for a, f in ((0.4, 220), (0.2, 1330), (0.1, 2900))
    ).astype(np.float32)  # fmt: skip


def pcm(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.rint(np.clip(samples, -1, 1) * np.float32(32767)).astype(np.int16)


def decoded(data: bytes, format: str) -> tuple[np.ndarray[Any, Any], int]:
    """Return float32 [S] and its rate. AAC's delay is cut off."""
    if format in ("mp3", "opus"):
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        return samples, rate
    with av.open(io.BytesIO(data), format="aac" if format == "aac" else format) as container:
        stream = container.streams.audio[0]
        assert (stream.channels, len(container.streams)) == (1, 1)
        pieces = [frame.to_ndarray()[0] for frame in container.decode(stream)]
    samples = np.concatenate(pieces)
    return (samples[AAC_DELAY:] if format == "aac" else samples / np.float32(32767)), stream.rate


def gain_and_snr_db(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return how much louder the sound became, and how far its noise lies below it."""
    gain = float(wanted @ got / (wanted @ wanted))
    noise = np.mean((got - gain * wanted) ** 2)
    return gain, float(10 * np.log10(np.mean((gain * wanted) ** 2) / noise))


# Formats that lose nothing.


def test_a_wav_is_a_mono_file_of_16_bit_pcm_and_louder_samples_are_clipped() -> None:
    data = encoded(np.array([0.0, 0.5, -0.5, 1.0, -1.0, 7.0, -7.0], np.float32), 24_000, "wav")
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert samples.tolist() == [0, 16384, -16384, 32767, -32767, 32767, -32767]
    assert len(data) == 44 + samples.nbytes


@pytest.mark.parametrize("size", [1, 3, 65_536, 65_537, 200_001])
def test_a_wav_written_in_blocks_is_the_file_that_is_written_at_once(size: int) -> None:
    samples = np.random.default_rng(size).normal(0, 0.5, size).astype(np.float32)
    whole = io.BytesIO()
    soundfile.write(whole, pcm(samples), 24_000, format="WAV", subtype="PCM_16")
    assert encoded(samples, 24_000, "wav") == whole.getvalue()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 150_000),
    st.one_of(st.integers(4_000, 65_535), st.integers(6_554, 19_200).map(lambda tens: 10 * tens)),
    st.integers(0, 1 << 32),
)
def test_wav_flac_and_pcm_keep_every_sample_at_any_rate(size: int, rate: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(0, 0.5, size).astype(np.float32)
    wanted = pcm(samples)
    with wave.open(io.BytesIO(encoded(samples, rate, "wav"))) as file:
        assert (file.getframerate(), file.readframes(file.getnframes())) == (rate, wanted.astype("<i2").tobytes())
    assert encoded(samples, rate, "pcm") == wanted.astype("<i2").tobytes()
    with av.open(io.BytesIO(encoded(samples, rate, "flac"))) as container:
        got = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
        assert container.streams.audio[0].rate == rate
    assert np.array_equal(got, wanted)


# Formats that lose some.


@pytest.mark.parametrize(
    ("format", "rates", "wanted_gain", "least_db"),
    [
        ("mp3", (8_000, 16_000, 24_000, 44_100, 48_000), 0.95, 60),
        ("opus", (8_000, 12_000, 16_000, 24_000, 48_000), 1.0, 30),
        ("aac", (8_000, 24_000, 44_100, 96_000), 1.0, 25),
    ],
)
def test_a_sound_comes_back_in_its_place(
    format: str, rates: tuple[int, ...], wanted_gain: float, least_db: float
) -> None:
    for rate in rates:
        wanted = chord(2 * rate, rate)
        got, got_rate = decoded(encoded(wanted, rate, format), format)
        assert got_rate == rate
        assert len(wanted) <= len(got) < len(wanted) + FRAME.get(format, 1)
        ends = rate // 20  # where it starts and stops at once, which is not what codecs are good at
        gain, snr_db = gain_and_snr_db(wanted[ends:-ends], got[ends : len(wanted) - ends])
        assert gain == pytest.approx(wanted_gain, abs=0.005)
        assert snr_db > least_db


@pytest.mark.parametrize(
    ("format", "rate", "target"),
    [
        ("opus", 22_050, 24_000), ("opus", 24_001, 48_000), ("opus", 44_100, 48_000), ("opus", 96_000, 48_000),
        ("mp3", 4_000, 8_000), ("mp3", 22_051, 24_000), ("mp3", 32_001, 44_100), ("mp3", 192_000, 48_000),
        ("aac", 7_350, 7_350), ("aac", 7_351, 8_000), ("aac", 48_001, 64_000), ("aac", 192_000, 96_000),
    ],
)  # fmt: skip
def test_a_rate_that_the_format_lacks_is_the_next_higher_one_in_the_file(format: str, rate: int, target: int) -> None:
    at = np.arange(rate) / rate
    got, got_rate = decoded(encoded((0.5 * np.sin(2 * np.pi * 440 * at)).astype(np.float32), rate, format), format)
    assert got_rate == target
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(target) / target)
    assert target <= len(got) < target + FRAME.get(format, 1)
    ends = target // 10
    gain, snr_db = gain_and_snr_db(wanted[ends:-ends], got[ends : target - ends])
    assert gain == pytest.approx(1, abs=0.06)
    assert snr_db > 20


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(("mp3", "opus", "aac")), st.integers(1, 6_000), st.integers(4_000, 65_535))
@example("mp3", 289, 4_000)
@example("opus", 1, 22_050)
@example("aac", 30, 4_000)
def test_a_sound_of_any_length_and_rate_keeps_its_length(format: str, size: int, rate: int) -> None:
    got, target = decoded(encoded(chord(size, rate), rate, format), format)
    wanted = -(-size * target // rate)
    assert 0 <= len(got) - wanted <= {"mp3": 46, "opus": 0, "aac": 1023}[format]


@pytest.mark.parametrize("format", LOSSY)
@pytest.mark.parametrize("size", [24_000, 24_001, 24_575, 24_959])
@pytest.mark.parametrize("rate", [24_000, 22_050])
def test_the_end_is_not_lost(format: str, size: int, rate: int) -> None:
    samples = np.zeros(size, np.float32)
    samples[-480:] = chord(480, rate)
    got, target = decoded(encoded(samples, rate, format), format)
    at = np.arange(size * target // rate - 480, size * target // rate)
    wanted = np.interp(at * rate / target, np.arange(size), samples)
    assert np.corrcoef(got[at], wanted)[0, 1] > 0.9
    assert 0.8 < np.sqrt(np.mean(got[at] ** 2) / np.mean(wanted**2)) < 1.2


@pytest.mark.parametrize(
    ("format", "rate", "bits_a_second"),
    [("mp3", 24_000, 128_000), ("mp3", 12_000, 64_000), ("opus", 24_000, 64_000), ("aac", 24_000, 128_000)],
)
def test_the_bit_rate_is_the_documented_one(format: str, rate: int, bits_a_second: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 10 * rate).astype(np.float32)
    assert 0.8 < 8 * len(encoded(noise, rate, format)) / 10 / bits_a_second < 1.2


@pytest.mark.parametrize("format", FORMATS)
def test_louder_samples_are_clipped(format: str) -> None:
    square = np.sign(chord(12_000, 24_000))
    assert encoded(7 * square, 24_000, format) == encoded(square, 24_000, format)


# The same samples, the same bytes.


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_samples_give_the_same_bytes_in_another_process(format: str) -> None:
    code = """
import sys, numpy as np
from workers.encoders.audio import encode_audio
samples = np.frombuffer(sys.stdin.buffer.read(), np.float32)
sys.stdout.buffer.write(encode_audio({"waveform": samples}, {"sampling_rate": 22_050}, sys.argv[1]))
if "torch" in sys.modules:
    sys.exit("an encoder imports torch")
"""
    samples = chord(50_000, 22_050)
    other = subprocess.run(
        [sys.executable, "-c", code, format], input=samples.tobytes(), stdout=subprocess.PIPE, check=True
    )
    assert other.stdout == encoded(samples, 22_050, format) == encoded(samples, 22_050, format)


def test_a_view_with_strides_is_the_same_as_its_copy() -> None:
    samples = chord(20_000, 24_000)[::2]
    assert not samples.flags.c_contiguous
    for format in FORMATS:
        assert encoded(samples, 24_000, format) == encoded(samples.copy(), 24_000, format)


@pytest.mark.parametrize(("format", "minutes"), [("wav", 10), ("pcm", 10), ("flac", 10), ("opus", 1), ("aac", 1)])
def test_a_long_sound_takes_little_memory_beside_its_file(format: str, minutes: int) -> None:
    samples = np.resize(chord(48_000, 48_000), minutes * 60 * 48_000)
    tracemalloc.start()
    try:
        size = len(encoded(samples, 48_000, format))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * size + (4 << 20)


# What is no waveform.


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (None, "no tensor waveform"),
        ([0.0, 0.1], "no tensor waveform"),
        (np.zeros(3), r"must be float32 \[S\], not float64 \[3\]"),
        (np.zeros(3, np.int16), r"must be float32 \[S\], not int16 \[3\]"),
        (np.zeros((1, 3), np.float32), r"must be float32 \[S\], not float32 \[1, 3\]"),
        (np.array(0.5, np.float32), r"must be float32 \[S\], not float32 \[\]"),
        (np.zeros(0, np.float32), "is empty"),
        (np.array([0.0, np.nan], np.float32), "not finite"),
        (np.array([np.inf, 0.0], np.float32), "not finite"),
        (np.append(np.zeros(70_000, np.float32), -np.inf).astype(np.float32), "not finite"),
    ],
    ids=["none", "list", "float64", "int16", "two dimensions", "no dimension", "empty", "nan", "inf", "late"],
)
def test_a_value_that_is_no_waveform_is_refused(samples: Any, message: str, format: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        encoded(samples, 24_000, format)
    assert caught.value.field == "waveform"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "rate", [None, 24_000.0, "24000", True, 3, 0, -16_000, 3_999, 192_001, 10**400, 65_537, np.nan]
)
def test_an_absurd_rate_is_refused(rate: Any, format: str) -> None:
    with pytest.raises(ModelError) as caught:
        encoded(np.zeros(100, np.float32), rate, format)
    assert caught.value.field == "sampling_rate"


def test_a_missing_rate_is_refused() -> None:
    with pytest.raises(ModelError, match="not None") as caught:
        encode_audio({"waveform": np.zeros(3, np.float32)}, {}, "wav")
    assert caught.value.field == "sampling_rate"


def test_a_waveform_beyond_what_a_wav_file_can_state_is_refused() -> None:
    samples = np.broadcast_to(np.float32(0.5), 1 << 31)  # takes four bytes
    with pytest.raises(ModelError, match="at most") as caught:
        encoded(samples, 48_000, "wav")
    assert caught.value.field == "waveform"


@pytest.mark.parametrize("format", ["ogg", "WAV", "", "vorbis"])
def test_an_unknown_format_is_refused(format: str) -> None:
    with pytest.raises(ConfigError, match="known: aac, flac, mp3, opus, pcm, wav") as caught:
        encoded(np.zeros(3, np.float32), 24_000, format)
    assert caught.value.field == "format"
