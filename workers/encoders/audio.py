"""``encode_audio``: a waveform as an audio file of one channel.

=====  =====================  ========================  ============================================
Name   Bytes                  Bits a second             Decoded length
=====  =====================  ========================  ============================================
wav    WAV, PCM of 16 bits    16 a sample               the waveform's
flac   FLAC, 16 bits          lossless                  the waveform's
pcm    little-endian int16    16 a sample               the waveform's, at its own rate; it has no header
mp3    MP3 with a LAME tag    128k; to 12 kHz 64k       the waveform's, or up to 46 samples longer
opus   Opus in Ogg            64k on average            the waveform's
aac    AAC-LC in ADTS         128k, at most 6 a sample  up to 2047 samples longer than the waveform
=====  =====================  ========================  ============================================

No end is lost. An MP3's tag and an Opus file's header and last page say which samples a decoder has to cut off at both
ends. ADTS has no field for that: 1024 samples of the encoder's delay come first, and the last frame of 1024 samples is
filled up with silence. An MP3 sounds 0.45 dB softer, because LAME leaves some room against clipping.

At 64k of Opus, or 128k of MP3 or AAC, listeners hardly tell one channel of speech or music from its source. FFmpeg
encodes these three, because libsndfile writes no AAC, gives every Opus file a random serial number, and sets an MP3's
bit rate only in proportion to what its sampling rate allows.

MP3, Opus and AAC know a few sampling rates alone. A waveform of another one is resampled to the next higher rate, so
that no frequency is lost, or to the highest where none is higher. FFmpeg's own resampler does it, as it does for media
that are decoded. It is a windowed sinc: measured, its error lies 99 dB below a tone in the lower 0.8 of the band, which
is less than 16 bits can hold, and a tone at 0.9 of the band loses half a decibel.
"""

from __future__ import annotations

import io
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import av
import numpy as np
import soundfile  # type: ignore[import-untyped]

from omni_jobs.errors import ModelError
from workers.encoders.flow_data import check_format, tensor_of

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from numpy.typing import NDArray

_LOWEST_RATE, _HIGHEST_RATE = 4_000, 192_000  # Hz
_LAST_ODD_RATE = 65_535  # Hz; FLAC states higher rates in tens
_MOST_SAMPLES = (1 << 31) - 64  # a WAV file's size is a number of 32 bits
_BLOCK = 1 << 16  # samples encoded at a time
_SILENCE = 1024  # samples after the end, because FFmpeg's resampler loses its last ones: up to 71, measured


def encode_audio(tensors: Mapping[str, NDArray[Any]], values: Mapping[str, Any], format: str) -> bytes:
    """Return a waveform as the bytes of an audio file. Louder samples than full scale are clipped.

    ``tensors`` has ``waveform``: float32 [S], full scale -1 … 1. ``values`` has ``sampling_rate``: int, in Hz, above
    65,535 a multiple of 10. ``format`` is wav, flac, mp3, opus, aac or pcm. Beside the waveform and the file, memory is
    taken for a few blocks of 65,536 samples.

    Raises ModelError naming ``waveform`` or ``sampling_rate`` for another type or shape, an empty waveform, a sample
    that is not finite, or a rate outside 4,000 … 192,000 Hz; ConfigError for another format.
    """
    check_format(format, _ENCODERS)
    samples = tensor_of(tensors, "waveform", np.float32, "S")
    rate = _sampling_rate(values)
    if len(samples) > _MOST_SAMPLES:
        raise ModelError(f"the waveform has {len(samples)} samples; at most {_MOST_SAMPLES} fit", field="waveform")
    if not all(np.isfinite(samples[at : at + _BLOCK]).all() for at in range(0, len(samples), _BLOCK)):
        raise ModelError("the waveform has values that are not finite", field="waveform")
    file = io.BytesIO()
    _ENCODERS[format](samples, rate, file)
    return file.getvalue()


def _sampling_rate(values: Mapping[str, Any]) -> int:
    rate = values.get("sampling_rate")
    if not isinstance(rate, int) or isinstance(rate, bool):
        raise ModelError(
            f"the sampling rate must be a whole number of Hz, not {reprlib.repr(rate)}", field="sampling_rate"
        )
    if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        raise ModelError(
            f"the sampling rate must lie between {_LOWEST_RATE} and {_HIGHEST_RATE} Hz, not {reprlib.repr(rate)}",
            field="sampling_rate",
        )
    if rate > _LAST_ODD_RATE and rate % 10:
        raise ModelError(f"a sampling rate above {_LAST_ODD_RATE} Hz ends in 0, not {rate}", field="sampling_rate")
    return rate


def _blocks(samples: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the samples, clipped, in blocks of float32 [at most _BLOCK]."""
    for at in range(0, len(samples), _BLOCK):
        yield np.clip(samples[at : at + _BLOCK], -1.0, 1.0)


def _pcm(block: NDArray[Any]) -> NDArray[Any]:
    return np.rint(block * 32767.0).astype("<i2")


def _write_pcm(samples: NDArray[Any], rate: int, file: io.BytesIO) -> None:
    for block in _blocks(samples):
        file.write(_pcm(block).data)


def _write_sndfile(samples: NDArray[Any], rate: int, file: io.BytesIO, *, format: str) -> None:
    with soundfile.SoundFile(file, "w", rate, 1, subtype="PCM_16", format=format) as sound:
        for block in _blocks(samples):
            sound.write(_pcm(block))


@dataclass(frozen=True, slots=True)
class _Ffmpeg:
    """Writes a file with FFmpeg.

    codec     name of its encoder
    format    name of its muxer
    rates     the sampling rates that the codec knows, in Hz, ascending
    bit_rate  a sampling rate → bits a second
    """

    codec: str
    format: str
    rates: tuple[int, ...]
    bit_rate: Callable[[int], int]

    def __call__(self, samples: NDArray[Any], rate: int, file: io.BytesIO) -> None:
        try:
            # Bit-exact: no version and no random number in the file.
            with av.open(file, "w", format=self.format, options={"fflags": "+bitexact"}) as container:
                target = next((known for known in self.rates if known >= rate), self.rates[-1])
                added = container.add_stream(self.codec, rate=target, options={"flags": "+bitexact"})
                stream = cast("AudioStream", added)
                stream.codec_context.layout = "mono"
                stream.codec_context.bit_rate = self.bit_rate(target)
                for frame in _frames(_resampled(_blocks(samples), len(samples), rate, target), target):
                    container.mux(stream.encode(frame))
                container.mux(stream.encode(None))
        except MemoryError:  # also FFmpeg's own
            raise
        except av.FFmpegError as error:
            raise ModelError(f"the waveform does not encode: {error.strerror or error}", field="waveform") from error


def _resampled(blocks: Iterator[NDArray[Any]], size: int, rate: int, target: int) -> Iterator[NDArray[Any]]:
    """Yield the blocks, of ``size`` samples altogether, at another rate: size * target / rate samples, rounded up."""
    if rate == target:
        yield from blocks
        return
    resampler = av.AudioResampler(format="flt", layout="mono", rate=target)
    left = -(-size * target // rate)
    for frame in _frames(chain(blocks, [np.zeros(_SILENCE, np.float32)]), rate):
        for resampled in resampler.resample(frame):
            piece = resampled.to_ndarray()[0][:left]
            left -= len(piece)
            if len(piece):
                yield piece


def _frames(blocks: Iterable[NDArray[Any]], rate: int) -> Iterator[av.AudioFrame]:
    at = 0
    for block in blocks:
        frame = av.AudioFrame.from_ndarray(block[None, :], format="flt", layout="mono")
        frame.sample_rate = rate
        frame.pts = at
        frame.time_base = Fraction(1, rate)
        at += len(block)
        yield frame


_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
_AAC_RATES = (7_350, *_MP3_RATES, 64_000, 88_200, 96_000)

_ENCODERS: Mapping[str, Callable[[NDArray[Any], int, io.BytesIO], None]] = {
    "wav": partial(_write_sndfile, format="WAV"),
    "flac": partial(_write_sndfile, format="FLAC"),
    "pcm": _write_pcm,
    # MPEG-2.5, the part of MP3 for rates up to 12 kHz, knows no more than 64k; AAC knows no more than 6 bits a sample.
    "mp3": _Ffmpeg("libmp3lame", "mp3", _MP3_RATES, lambda rate: 64_000 if rate <= 12_000 else 128_000),
    "opus": _Ffmpeg("libopus", "ogg", _OPUS_RATES, lambda rate: 64_000),
    "aac": _Ffmpeg("aac", "adts", _AAC_RATES, lambda rate: min(128_000, 6 * rate)),
}
