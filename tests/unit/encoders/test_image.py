"""Pixels as pictures, decoded again by FFmpeg, because Pillow wrote them."""

import io
import json
import subprocess
import sys
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from omni_jobs.errors import ConfigError, ModelError
from workers.encoders.image import encode_image

FORMATS = ("png", "jpeg", "webp")


def encoded(pixels: Any, format: str) -> bytes:
    return encode_image({"pixels": pixels}, {}, format)


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    """Waves of a different period in each channel."""
    y, x = np.mgrid[:height, :width]
    waves = (np.sin((x + y) / 31), np.cos(x / 23), np.sin(y / 17))
    return np.stack([(wave * 100 + 128) for wave in waves], axis=-1).astype(np.uint8)


def decoded(data: bytes) -> np.ndarray[Any, Any]:
    with av.open(io.BytesIO(data)) as container:
        (frame,) = container.decode(video=0)
        return frame.to_ndarray(format="rgb24")


def psnr_db(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    assert got.shape == wanted.shape
    return float(10 * np.log10(255**2 / np.mean((got.astype(float) - wanted) ** 2)))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 80), st.integers(1, 80), st.integers(0, 1 << 32))
def test_a_png_keeps_every_pixel(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(decoded(encoded(pixels, "png")), pixels)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(("jpeg", "webp")), st.integers(1, 80), st.integers(1, 80), st.integers(0, 1 << 32))
def test_a_picture_of_any_size_and_any_noise_encodes(format: str, height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    with Image.open(io.BytesIO(encoded(pixels, format))) as image:
        image.load()
        assert (image.format, image.mode, image.size) == (format.upper(), "RGB", (width, height))


@pytest.mark.parametrize(("format", "least_db"), [("jpeg", 40), ("webp", 35)])
def test_a_lossy_picture_looks_like_its_pixels(format: str, least_db: float) -> None:
    wanted = picture(301, 403)
    data = encoded(wanted, format)
    assert psnr_db(wanted, decoded(data)) > least_db
    assert len(data) < wanted.nbytes / 10


def test_a_jpeg_keeps_the_colours_of_thin_lines() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, ::2] = (255, 0, 0)
    assert psnr_db(pixels, decoded(encoded(pixels, "jpeg"))) > 35


@pytest.mark.parametrize(("format", "longest"), [("png", 65_500), ("jpeg", 65_500), ("webp", 16_383)])
def test_the_longest_side_encodes_and_a_longer_one_is_refused(format: str, longest: int) -> None:
    pixels = picture(2, longest + 1)
    with Image.open(io.BytesIO(encoded(pixels[:, :-1], format))) as image:
        assert image.size == (longest, 2)
    with pytest.raises(ModelError, match=f"at most {longest} pixels, not {longest + 1} x 2") as caught:
        encoded(pixels, format)
    assert caught.value.field == "pixels"


METADATA = {"job_id": "job-01a1fd71a36f72a284df63f94cac8d2e", "seed": str((1 << 63) - 1)}


def metadata_of(data: bytes) -> tuple[str, dict[str, str]]:
    """Return the software, and the metadata that stand in a file's text chunks or its EXIF."""
    with Image.open(io.BytesIO(data)) as image:
        if image.format == "PNG":
            text = dict(image.text)  # type: ignore[attr-defined]
            return text.pop("Software"), text
        exif = image.getexif()
        comment = exif.get_ifd(0x8769)[0x9286]
        assert comment[:8] == b"ASCII\0\0\0"
        return exif[0x0131], json.loads(comment[8:])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("metadata", [METADATA, {"text": 'quotes " and\nlines, 你好'}], ids=["a job's", "any text"])
def test_metadata_stand_in_the_file_and_change_no_pixel(format: str, metadata: dict[str, str]) -> None:
    pixels = picture(40, 50)
    data = encode_image({"pixels": pixels}, {}, format, metadata)
    assert metadata_of(data) == ("omni-jobs", metadata)
    assert data == encode_image({"pixels": pixels}, {}, format, metadata)
    assert np.array_equal(decoded(data), decoded(encoded(pixels, format)))


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_pixels_give_the_same_bytes_in_another_process(format: str) -> None:
    code = """
import sys, numpy as np
from workers.encoders.image import encode_image
pixels = np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(120, 161, 3)
sys.stdout.buffer.write(encode_image({"pixels": pixels}, {}, sys.argv[1]))
if "torch" in sys.modules:
    sys.exit("an encoder imports torch")
"""
    pixels = picture(120, 161)
    other = subprocess.run(
        [sys.executable, "-c", code, format], input=pixels.tobytes(), stdout=subprocess.PIPE, check=True
    )
    assert other.stdout == encoded(pixels, format) == encoded(np.flip(pixels, 0).copy()[::-1], format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (None, "no tensor pixels"),
        (np.zeros((4, 4), np.uint8), r"must be uint8 \[H, W, 3\], not uint8 \[4, 4\]"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"must be uint8 \[H, W, 3\], not uint8 \[1, 4, 4, 3\]"),
        (np.zeros((3, 4, 4), np.uint8), r"must be uint8 \[H, W, 3\], not uint8 \[3, 4, 4\]"),
        (np.zeros((4, 4, 4), np.uint8), r"must be uint8 \[H, W, 3\], not uint8 \[4, 4, 4\]"),
        (np.zeros((4, 4, 3), np.float32), r"must be uint8 \[H, W, 3\], not float32 \[4, 4, 3\]"),
        (np.zeros((4, 4, 3), np.int8), "not int8"),
        (np.zeros((0, 4, 3), np.uint8), "is empty"),
        (np.zeros((4, 0, 3), np.uint8), "is empty"),
    ],
    ids=["none", "grey", "video", "channels first", "alpha", "float", "signed", "no rows", "no columns"],
)
def test_a_value_that_is_no_picture_is_refused(pixels: Any, message: str, format: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        encoded(pixels, format)
    assert caught.value.field == "pixels"


@pytest.mark.parametrize("format", ["gif", "jpg", "PNG", ""])
def test_an_unknown_format_is_refused(format: str) -> None:
    with pytest.raises(ConfigError, match="known: jpeg, png, webp") as caught:
        encoded(picture(4, 4), format)
    assert caught.value.field == "format"
