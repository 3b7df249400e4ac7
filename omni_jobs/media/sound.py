"""A sound file opened for reading: by libsndfile, and by FFmpeg where that does not know the format."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import soundfile  # type: ignore[import-untyped]

from omni_jobs.errors import InvalidRequest
from omni_jobs.media.ffmpeg import CODECS, check_codec, codec_of, opened_container
from omni_jobs.media.formats import KNOWN, MediaFormat, format_of
from omni_jobs.media.links import links
from omni_jobs.media.mp4_index import check_index
from omni_jobs.media.sample_data import true_length

if TYPE_CHECKING:
    from av.container import InputContainer

    from omni_jobs.media.media_limits import MediaLimits

BLOCK = 1 << 16
"""Frames that a block of samples has at most; a frame is a sample of each channel."""

_MIN_RATE = 4_000
_BY_SNDFILE = frozenset(("wav", "flac", "mp3", "ogg"))
_RARE_BY_SNDFILE = frozenset(("aiff", "au", "caf"))  # it knows some codecs there that FFmpeg does not
_ENDLESS = 1 << 62  # frames from here on are what libsndfile says where the header says none
_CHANGES = "the audio changes its sampling rate or its channels on the way"
_SURE_LENGTHS = frozenset(("WAV", "WAVEX", "FLAC"))
# A header of an MP4 counts padding that no decoder returns, or leaves it out: 0.2 s are more than any encoder's.
_SLACK_S = 0.2


@dataclass(frozen=True, slots=True)
class Sound:
    """An open sound.

    frames  as its header states them; None where it states none
    least   the fewest that the header promises, 0 where none; a sound that has fewer is cut off
    blocks  float32 [F, channels], full scale 1, of ``BLOCK`` frames at most; to be read once
    """

    media_type: str
    rate: int
    channels: int
    frames: int | None
    least: int
    blocks: Iterator[np.ndarray[Any, Any]]


@contextmanager
def opened_sound(data: bytes | memoryview, limits: MediaLimits) -> Iterator[Sound]:
    """Open a sound for a block; raise the libraries' errors in the block as InvalidRequest.

    Raise InvalidRequest for bytes that are no sound of a known format, or are cut off.
    """
    format = format_of("audio", data)
    if format is None:
        raise InvalidRequest(f"not audio this server knows: {KNOWN['audio']}")
    data = true_length(data, format.name, limits)
    with ExitStack() as stack:
        yield _opened(stack, data, format, limits)


def _opened(stack: ExitStack, data: bytes | memoryview, format: MediaFormat, limits: MediaLimits) -> Sound:
    if format.name in _BY_SNDFILE:
        sound = stack.enter_context(_by_sndfile(data, format, limits))
        return sound or stack.enter_context(_by_ffmpeg(data, format, limits))
    try:
        return stack.enter_context(_by_ffmpeg(data, format, limits))
    except InvalidRequest:
        if format.name not in _RARE_BY_SNDFILE:
            raise
        sound = stack.enter_context(_by_sndfile(data, format, limits))
        if sound is None:
            raise
        return sound


def check_form(rate: int, channels: int, limits: MediaLimits) -> None:
    """Raise InvalidRequest for a sampling rate in Hz, or a number of channels, that is not taken."""
    if not _MIN_RATE <= rate <= limits.max_audio_rate:
        raise InvalidRequest(f"{rate} Hz; {_MIN_RATE} to {limits.max_audio_rate} Hz are taken (max_audio_rate)")
    if channels > limits.max_audio_channels:
        raise InvalidRequest(f"{channels} channels; at most {limits.max_audio_channels} are taken (max_audio_channels)")


@contextmanager
def _by_sndfile(data: bytes | memoryview, format: MediaFormat, limits: MediaLimits) -> Iterator[Sound | None]:
    """Yield a sound that libsndfile reads; None for one that it does not open."""
    pieces = links(data, format.name)
    try:
        file = soundfile.SoundFile(io.BytesIO(next(pieces)))
    except soundfile.LibsndfileError:
        yield None
        return
    try:
        with file:
            if file.format == "FLAC" and file.frames >= _ENDLESS:  # it was piped: libsndfile fails at its end
                yield None
                return
            is_sure = file.format in _SURE_LENGTHS and not file.subtype.startswith("MPEG")
            is_sure = is_sure and 0 < file.frames < _ENDLESS
            frames = file.frames if is_sure else None
            check_form(file.samplerate, file.channels, limits)
            blocks = chain(_read(file), _later(pieces, file.samplerate, file.channels))
            yield Sound(format.media_type, file.samplerate, file.channels, frames, frames or 0, blocks)
    except soundfile.LibsndfileError as error:
        raise InvalidRequest(f"the audio does not decode: {error.error_string}") from None


def _read(file: soundfile.SoundFile) -> Iterator[np.ndarray[Any, Any]]:
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        yield block


def _later(pieces: Iterator[memoryview], rate: int, channels: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the blocks of further sounds. Raise InvalidRequest for one of another rate or other channels."""
    for piece in pieces:
        with soundfile.SoundFile(io.BytesIO(piece)) as file:
            if (file.samplerate, file.channels) != (rate, channels):
                raise InvalidRequest(_CHANGES)
            yield from _read(file)


@contextmanager
def _by_ffmpeg(data: bytes | memoryview, format: MediaFormat, limits: MediaLimits) -> Iterator[Sound]:
    if format.demuxer == "mp4":
        check_index(data, limits.max_video_frames)
    with opened_container("audio", data, format.demuxer) as container:
        stream = _track(container)
        check_form(stream.codec_context.sample_rate, stream.codec_context.layout.nb_channels, limits)
        frames = _decoded(container, stream)
        first = next(frames, None)  # a header may state half the rate, of which the codec makes the whole
        if first is None:
            raise InvalidRequest("the audio has no samples")
        stated = _stated_s(stream)
        least_s = stated - _SLACK_S if format.demuxer == "mp4" and stream.frames else 0.0
        rate, channels = first.sample_rate, first.layout.nb_channels
        check_form(rate, channels, limits)
        yield Sound(
            format.media_type,
            rate,
            channels,
            round(stated * rate) if stated > 0 and least_s > 0 else None,
            max(0, round(least_s * rate)),
            _samples(first, frames),
        )


def _track(container: InputContainer) -> av.AudioStream:
    """Return the first sound track of a known codec. Raise InvalidRequest where there is none."""
    tracks = container.streams.audio
    if not tracks:
        raise InvalidRequest("the file has no sound track")
    known = [track for track in tracks if codec_of(track) in CODECS["audio"]]
    if not known:
        check_codec("audio", tracks[0])
    return known[0]


def _decoded(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """Yield a track's frames. Raise InvalidRequest where an MP4 lacks the bytes of one."""
    is_indexed = "mp4" in container.format.name
    for packet in container.demux(stream):
        if packet.is_corrupt and is_indexed:
            raise InvalidRequest("the audio is cut off")
        yield from packet.decode()


def _stated_s(stream: av.AudioStream) -> float:
    """Return the seconds that a track's header states; 0 where it states none."""
    if stream.duration is None or stream.time_base is None:
        return 0.0
    return max(0.0, float(stream.duration * stream.time_base))


def _samples(first: av.AudioFrame, frames: Iterator[av.AudioFrame]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield a track's samples, float32 [F, channels], from its frames, of which ``first`` was read already.

    Raise InvalidRequest when the sampling rate or the number of channels changes. Their form or places may change.
    """
    rate, channels = first.sample_rate, first.layout.nb_channels
    form, packer = None, None
    for frame in chain((first,), frames, (None,)):
        if frame is not None and (frame.sample_rate, frame.layout.nb_channels) != (rate, channels):
            raise InvalidRequest(_CHANGES)
        new_form = None if frame is None else (frame.format.name, frame.layout.name)
        if packer is not None and new_form != form:
            yield from _packed(packer, None, channels)  # what it holds; it takes frames of one form alone
            packer = None
        if frame is not None:
            if packer is None:
                packer = av.AudioResampler(format="flt", layout=frame.layout, rate=rate, frame_size=BLOCK)
            form = new_form
            yield from _packed(packer, frame, channels)


def _packed(packer: av.AudioResampler, frame: av.AudioFrame | None, channels: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the blocks that are whole once a frame has come; with None, all that is left."""
    for block in packer.resample(frame):
        yield block.to_ndarray().reshape(-1, channels)
