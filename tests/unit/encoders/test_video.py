"""Pixels as videos, decoded again by FFmpeg's own decoders, because x264 and libvpx wrote them."""

import io
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, ModelError
from workers.encoders.video import encode_video

FORMATS = ("mp4", "webm")


def encoded(pixels: Any, rate: Any, format: str) -> bytes:
    return encode_video({"pixels": pixels}, {"frame_rate": rate}, format)


def clip(frames: int, height: int, width: int) -> np.ndarray[Any, Any]:
    """Waves that move, of a different period and direction in each channel."""
    t, y, x = np.mgrid[:frames, :height, :width]
    waves = (np.sin((x + 3 * t) / 20), np.cos((y + 2 * t) / 17), np.cos((x - y + t) / 25))
    return np.stack([(wave * 100 + 128) for wave in waves], axis=-1).astype(np.uint8)


def decoded(data: bytes) -> np.ndarray[Any, Any]:
    with av.open(io.BytesIO(data)) as container:
        assert len(container.streams) == 1
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def psnr_db(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    assert got.shape == wanted.shape
    return float(10 * np.log10(255**2 / np.mean((got.astype(float) - wanted) ** 2)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_video_looks_like_its_pixels(format: str) -> None:
    wanted = clip(30, 144, 176)
    data = encoded(wanted, 24, format)
    got = decoded(data)
    assert psnr_db(wanted, got) > 33
    assert min(psnr_db(one, other) for one, other in zip(wanted, got, strict=True)) > 30
    assert len(data) < wanted.nbytes / 20


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (90, 140, 200)])
@pytest.mark.parametrize("format", FORMATS)
def test_colours_stay_and_are_those_of_bt709(format: str, colour: tuple[int, int, int]) -> None:
    wanted = np.full((2, 64, 64, 3), colour, np.uint8)
    data = encoded(wanted, 24, format)
    with av.open(io.BytesIO(data)) as container:
        frame = next(iter(container.decode(video=0)))
        assert (frame.format.name, frame.colorspace, frame.color_primaries, frame.color_trc, frame.color_range) == (
            "yuv420p", Colorspace.ITU709, ColorPrimaries.BT709, ColorTrc.BT709, ColorRange.MPEG,
        )  # fmt: skip
        # By the standard, not by FFmpeg: Kr = 0.2126, Kb = 0.0722, and 219 steps above 16.
        brightness = 16 + 219 * np.dot((0.2126, 0.7152, 0.0722), colour) / 255
        assert abs(frame.to_ndarray()[:64].astype(float).mean() - brightness) < 2
    assert np.abs(decoded(data).astype(int) - wanted).max() < 10


@pytest.mark.parametrize(("format", "codec"), [("mp4", "h264"), ("webm", "vp9")])
def test_the_file_says_what_it_is(format: str, codec: str) -> None:
    with av.open(io.BytesIO(encoded(clip(12, 48, 64), 12, format))) as container:
        stream = container.streams.video[0]
        assert format in container.format.name
        assert (stream.codec_context.name, stream.average_rate) == (codec, 12)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FORMATS), st.integers(1, 5), st.integers(1, 70), st.integers(1, 70), st.integers(0, 1 << 32))
def test_any_size_encodes_and_an_odd_one_grows_in_mp4_alone(
    format: str, frames: int, height: int, width: int, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    grown = (height + height % 2, width + width % 2) if format == "mp4" else (height, width)
    assert decoded(encoded(pixels, 10, format)).shape == (frames, *grown, 3)


def test_the_row_and_column_that_mp4_adds_are_copies_of_the_last() -> None:
    pixels = clip(3, 47, 63)
    got = decoded(encoded(pixels, 10, "mp4"))
    assert psnr_db(pixels, got[:, :47, :63]) > 33
    assert psnr_db(pixels[:, -1], got[:, 47, :63]) > 28
    assert psnr_db(pixels[:, :, -1], got[:, :47, 63]) > 28


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.integers(1, 40),
    st.one_of(st.integers(1, 240), st.floats(0.1, 240), st.sampled_from((23.976, 29.97, 24000 / 1001, 0.1, 480))),
)
def test_frames_last_as_long_as_their_rate_says(format: str, frames: int, rate: float) -> None:
    data = encoded(np.zeros((frames, 16, 16, 3), np.uint8), rate, format)
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        shown = [float(frame.pts * stream.time_base) for frame in container.decode(stream)]
        length = container.duration / 1_000_000
    assert shown == pytest.approx([index / rate for index in range(frames)], rel=1e-3, abs=2e-3)
    assert length == pytest.approx(frames / rate, rel=1e-3, abs=2e-3)


def test_the_rates_of_television_are_exact() -> None:
    for rate, wanted in ((24000 / 1001, Fraction(24000, 1001)), (30000 / 1001, Fraction(30000, 1001)), (12.5, 12.5)):
        with av.open(io.BytesIO(encoded(clip(4, 16, 16), rate, "mp4"))) as container:
            assert container.streams.video[0].average_rate == wanted


def boxes(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the name and position of each box at the top of an MP4."""
    at = 0
    while at < len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        yield name.decode(), at
        at += size


def test_the_index_of_an_mp4_stands_before_its_frames_and_is_right() -> None:
    data = encoded(clip(120, 48, 64), 24, "mp4")
    names = [name for name, _ in boxes(data)]
    assert names.index("moov") < names.index("mdat")
    samples = dict(boxes(data))["mdat"]
    with av.open(io.BytesIO(data)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size]
    assert min(at) >= samples + 8
    assert len(at) == 120


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_pixels_give_the_same_bytes_in_another_process(format: str) -> None:
    code = """
import sys, numpy as np
from workers.encoders.video import encode_video
pixels = np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(40, 200, 301, 3)
sys.stdout.buffer.write(encode_video({"pixels": pixels}, {"frame_rate": 24}, sys.argv[1]))
if "torch" in sys.modules:
    sys.exit("an encoder imports torch")
"""
    noise = np.random.default_rng(0).integers(0, 24, (40, 200, 301, 3), dtype=np.uint8)
    pixels = clip(40, 200, 301) // 2 + noise  # moving and noisy: where x264's estimates differ from run to run
    other = subprocess.run(
        [sys.executable, "-c", code, format], input=pixels.tobytes(), stdout=subprocess.PIPE, check=True
    )
    assert other.stdout == encoded(pixels, 24.0, format) == encoded(np.flip(pixels, 1).copy()[:, ::-1], 24, format)


@pytest.mark.parametrize("format", FORMATS)
def test_memory_is_taken_for_a_few_frames_alone(format: str) -> None:
    pixels = np.resize(clip(2, 180, 320), (150, 180, 320, 3))
    tracemalloc.start()
    try:
        size = len(encoded(pixels, 24, format))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * size + 8 * pixels[0].nbytes + (1 << 20)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (None, "no tensor pixels"),
        (np.zeros((4, 4, 3), np.uint8), r"must be uint8 \[F, H, W, 3\], not uint8 \[4, 4, 3\]"),
        (np.zeros((2, 3, 4, 4), np.uint8), r"must be uint8 \[F, H, W, 3\], not uint8 \[2, 3, 4, 4\]"),
        (np.zeros((2, 4, 4, 3), np.float32), r"must be uint8 \[F, H, W, 3\], not float32 \[2, 4, 4, 3\]"),
        (np.zeros((0, 4, 4, 3), np.uint8), "is empty"),
        (np.zeros((2, 4, 0, 3), np.uint8), "is empty"),
        (np.zeros((1, 1, 16_385, 3), np.uint8), "at most 16384 pixels, not 16385 x 1"),
        (np.zeros((1, 16_385, 1, 3), np.uint8), "at most 16384 pixels, not 1 x 16385"),
    ],
    ids=["none", "image", "channels first", "float", "no frames", "no columns", "too wide", "too high"],
)
def test_a_value_that_is_no_video_is_refused(pixels: Any, message: str, format: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        encoded(pixels, 24, format)
    assert caught.value.field == "pixels"


@pytest.mark.parametrize("format", FORMATS)
def test_the_longest_side_encodes(format: str) -> None:
    assert decoded(encoded(np.zeros((2, 2, 16_384, 3), np.uint8), 24, format)).shape == (2, 2, 16_384, 3)


@pytest.mark.parametrize("rate", [None, "24", True, 0, -24, 0.09, 480.5, 1 << 40, 10**400, np.nan, np.inf, -np.inf])
def test_an_absurd_rate_is_refused(rate: Any) -> None:
    for format in FORMATS:
        with pytest.raises(ModelError) as caught:
            encoded(clip(2, 4, 4), rate, format)
        assert caught.value.field == "frame_rate"


@pytest.mark.parametrize("format", ["avi", "MP4", "", "h264"])
def test_an_unknown_format_is_refused(format: str) -> None:
    with pytest.raises(ConfigError, match="known: mp4, webm") as caught:
        encoded(clip(2, 4, 4), 24, format)
    assert caught.value.field == "format"
