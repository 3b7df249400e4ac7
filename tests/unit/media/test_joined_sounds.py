"""Sounds as people have them: joined, piped, of many channels, in rare codecs, and in containers of video."""

import io
import struct
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import sound
from omni_jobs.media.audio import decode_audio, probe_audio
from omni_jobs.media.links import links
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.settings import Settings
from tests.oracles import samples

LIMITS = MediaLimits.of(Settings())
RATE = 16_000


def check_tone(data: bytes, seconds: float) -> None:
    """Check that a sound is a sine of 440 Hz at about half of full scale, from its begin to its end."""
    decoded = decode_audio(data, RATE, LIMITS)
    assert probe_audio(data, LIMITS).samples == len(decoded)
    assert len(decoded) / RATE == pytest.approx(seconds, abs=0.15)
    spectrum = np.abs(np.fft.rfft(decoded * np.hanning(len(decoded))))
    assert spectrum.argmax() * RATE / len(decoded) == pytest.approx(440, abs=4)
    for part in np.array_split(decoded, 5):
        assert np.sqrt(np.mean(part**2)) == pytest.approx(0.354, abs=0.09)


MP3 = samples.sound("libmp3lame", format="mp3", seconds=1.0, rate=44_100)
TAG = b"ID3\x03\0\0\0\0\x03\x74" + bytes(500)
JOINED = {
    "two MP3s": (MP3 * 2, 2.0),
    "MP3s with tags": (TAG + MP3 + b"TAG".ljust(128) + TAG + TAG + MP3 + MP3, 3.0),
    "an MP3 with a tag behind it": (MP3 + b"TAG".ljust(128), 1.0),
    "a chain of Vorbis": (samples.audio(1.0, format="OGG", subtype="VORBIS") * 2, 2.0),
    "a chain of Opus": (samples.audio(1.0, rate=48_000, format="OGG", subtype="OPUS") * 3, 3.0),
}


@pytest.mark.parametrize("form", JOINED)
def test_all_of_joined_sounds_is_heard(form: str) -> None:
    check_tone(*JOINED[form])


def test_a_chain_of_two_rates_is_refused() -> None:
    chain = samples.audio(1.0, format="OGG", subtype="VORBIS")
    chain += samples.audio(1.0, rate=44_100, format="OGG", subtype="VORBIS")
    with pytest.raises(InvalidRequest, match="changes its sampling rate"):
        decode_audio(chain, RATE, LIMITS)


@pytest.mark.parametrize("data", [b"", b"\xff", MP3[:40], MP3[:64], MP3 + MP3[:700], TAG, b"OggS" * 20])
@pytest.mark.parametrize("name", ["mp3", "ogg", "wav"])
def test_what_is_not_joined_is_one_piece(data: bytes, name: str) -> None:
    assert list(links(data, name)) == [data]


class _Pipe(io.RawIOBase):
    """A file in which nobody can go back."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)


def test_a_flac_that_was_piped_is_heard() -> None:
    """Its header states no number of frames."""
    pipe = _Pipe()
    with av.open(pipe, "w", format="flac") as container:
        track = container.add_stream("flac", rate=RATE, layout="mono")
        wave = 16_000 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
        frame = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for each in (frame, None):
            container.mux(track.encode(each))
    check_tone(bytes(pipe.written), 1.0)


@pytest.mark.parametrize(("codec", "format"), [("aac", "ipod"), ("libopus", "webm")])
def test_eight_channels_are_heard(codec: str, format: str) -> None:
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)
    data = samples.sound(codec, format=format, seconds=1.0, layout="7.1", bit_rate=512_000)
    decoded = decode_audio(data, 48_000, LIMITS)
    assert np.sqrt(np.mean(decoded[4_800:43_200] ** 2)) == pytest.approx(np.sqrt(np.mean(wave**2)), abs=0.05)


@pytest.mark.parametrize(
    ("codec", "format", "rate"),
    [
        ("g722", "wav", 16_000),
        ("g726", "wav", 8_000),
        ("adpcm_yamaha", "wav", 16_000),
        ("libmp3lame", "avi", 44_100),
        ("pcm_s16le", "avi", 44_100),
        ("aac", "mpegts", 44_100),
        ("mp2", "mpegts", 44_100),
    ],
)
def test_more_of_what_ffmpeg_reads(codec: str, format: str, rate: int) -> None:
    check_tone(samples.sound(codec, format=format, seconds=1.0, rate=rate), 1.0)


@pytest.mark.parametrize(
    ("format", "subtype", "endian"),
    [("AU", "PCM_16", "LITTLE"), ("AU", "FLOAT", "LITTLE"), ("AIFF", "PCM_24", "LITTLE"), ("AU", "G721_32", None)],
)
def test_more_of_what_libsndfile_reads(format: str, subtype: str, endian: str | None) -> None:
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    file = io.BytesIO()
    soundfile.write(file, wave, RATE, format=format, subtype=subtype, endian=endian)
    check_tone(file.getvalue(), 1.0)


def test_an_au_of_unknown_length_is_heard_in_both_orders() -> None:
    wave = (16_000 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype("<i2")
    little = b"dns." + struct.pack("<IIIII", 24, 0xFFFFFFFF, 3, RATE, 1) + wave.tobytes()
    big = b".snd" + struct.pack(">IIIII", 24, 0xFFFFFFFF, 3, RATE, 1) + wave.astype(">i2").tobytes()
    for data in (little, big):
        check_tone(data, 1.0)


def wav_of(*channels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.stack(channels, axis=1), RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_a_part_in_opposite_phase_is_heard() -> None:
    """The one speaker's microphone is wired the wrong way, the other's is not."""
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    other = np.where(np.arange(RATE) < RATE // 2, -wave, wave)
    check_tone(wav_of(wave, other), 1.0)


def test_channels_in_opposite_phase_do_not_take_turns() -> None:
    """Both are as loud, but for noise: a channel that is chosen stays, or the sound would be turned over and over."""
    noise = np.random.default_rng(1).normal(0, 0.001, (2, 2 * RATE))
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)
    left, right = wave + noise[0], noise[1] - wave
    decoded = decode_audio(wav_of(left, right), RATE, LIMITS)
    assert min(np.abs(decoded - left).max(), np.abs(decoded - right).max()) < 1e-4


def test_sound_whose_samples_change_their_form_or_places_on_the_way_is_one() -> None:
    frames = [_frame("fltp", "5.1"), _frame("fltp", "5.1(side)"), _frame("s16", "5.1")]
    blocks = list(sound._samples(frames[0], iter(frames[1:])))
    assert np.array_equal(np.concatenate(blocks), np.full((300, 6), 0.5, np.float32))
    with pytest.raises(InvalidRequest, match="changes its sampling rate or its channels"):
        list(sound._samples(frames[0], iter([_frame("fltp", "stereo")])))


def _frame(form: str, layout: str) -> av.AudioFrame:
    """100 samples of half the full scale, at 8 kHz."""
    channels, is_planar = av.AudioLayout(layout).nb_channels, form.endswith("p")
    value = np.float32(0.5) if form.startswith("flt") else np.int16(1 << 14)
    samples = np.full((channels, 100) if is_planar else (1, 100 * channels), value)
    frame = av.AudioFrame.from_ndarray(samples, format=form, layout=layout)
    frame.sample_rate = 8000
    return frame
