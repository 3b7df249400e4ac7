"""What an encoder writes, a request may hold again: a job's artifact is the next job's input."""

from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import AudioInfo, ImageInfo, VideoInfo
from omni_jobs.media.audio import decode_audio, header_of_audio, probe_audio
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video, header_of_video, probe_video
from omni_jobs.pipelines.outputs import AUDIO, IMAGE, VIDEO
from omni_jobs.settings import Settings
from workers.encoders.audio import encode_audio
from workers.encoders.image import encode_image
from workers.encoders.video import encode_video

LIMITS = MediaLimits.of(Settings())
HEADLESS = "pcm"  # it says neither its rate nor its channels


def names(output: Any) -> list[str]:
    return [format.name for format in output.formats]


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("format", [name for name in names(AUDIO) if name != HEADLESS])
def test_a_sound(format: str, rate: int) -> None:
    at = np.arange(rate) / rate
    wave = (0.5 * np.sin(2 * np.pi * 440 * at)).astype(np.float32)
    data = encode_audio({"waveform": wave}, {"sampling_rate": rate}, format)
    for info in (header_of_audio(data, LIMITS), probe_audio(data, LIMITS)):
        assert isinstance(info, AudioInfo)
    samples = decode_audio(data, 16_000, LIMITS)
    assert abs(len(samples) - 16_000) <= 3_000  # a coder's delay and its last frame
    assert np.sqrt(np.mean(samples[4_000:12_000] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_a_sound_without_a_header_is_refused_by_name() -> None:
    wave = np.linspace(-1, 1, 4_000, dtype=np.float32)
    data = encode_audio({"waveform": wave}, {"sampling_rate": 24_000}, HEADLESS)
    with pytest.raises(InvalidRequest, match="WAV"):
        probe_audio(data, LIMITS)


@pytest.mark.parametrize("size", [(1, 1), (8, 12), (64, 41)])
@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("format", names(IMAGE))
def test_a_picture(format: str, opaque: bool, size: tuple[int, int]) -> None:
    tensors = {"pixels": np.full((*size, 3), (200, 120, 40), np.uint8)}
    if not opaque:
        tensors["opacity"] = np.full(size, 128, np.uint8)
    data = encode_image(tensors, {}, format, {"seed": "7"})
    for info in (header_of_image(data, LIMITS), probe_image(data, LIMITS)):
        assert isinstance(info, ImageInfo)
        assert (info.height, info.width) == size
    picture = decode_image(data, LIMITS, keeps_opacity=True)
    assert picture.mode == ("RGB" if opaque or format == "jpeg" else "RGBA")
    on_white = (200, 120, 40) if opaque else (227, 187, 147)
    assert np.abs(np.asarray(decode_image(data, LIMITS), np.int16) - on_white).max() <= 4


@pytest.mark.parametrize("size", [(16, 16), (31, 47)])
@pytest.mark.parametrize("frames", [1, 9])
@pytest.mark.parametrize("format", names(VIDEO))
def test_a_video(format: str, frames: int, size: tuple[int, int]) -> None:
    pixels = np.full((frames, *size, 3), (200, 120, 40), np.uint8)
    data = encode_video({"pixels": pixels}, {"frame_rate": 8}, format)
    for info in (header_of_video(data, LIMITS), probe_video(data, LIMITS)):
        assert isinstance(info, VideoInfo)
    decoded, _ = decode_video(data, LIMITS)
    assert np.abs(decoded.astype(np.int16) - (200, 120, 40)).mean() <= 6
