"""Pictures as people have them: with EXIF that is broken, and TIFFs of every kind of grey."""

import io
import struct

import numpy as np
import pytest
from PIL import ExifTags, Image

from omni_jobs.errors import InvalidRequest
from omni_jobs.media.image import decode_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.settings import Settings
from tests.oracles import samples

LIMITS = MediaLimits.of(Settings())
WIDTH, HEIGHT = 16, 8


def grey_tiff(
    bits: int, pixels: bytes, *, order: str = "<", white_is_zero: bool = False, is_signed: bool = False
) -> bytes:
    """A TIFF of one strip of grey, 16 x 8 pixels."""
    entries = {256: WIDTH, 257: HEIGHT, 258: bits, 259: 1, 262: 0 if white_is_zero else 1, 273: 0, 277: 1, 278: HEIGHT}
    entries |= {279: len(pixels)} | ({339: 2} if is_signed else {})
    entries[273] = 8 + 2 + 12 * len(entries) + 4
    table = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IH", 8, len(entries)) + table + bytes(4) + pixels


@pytest.mark.parametrize(("order", "white_is_zero", "grey"), [("<", False, 120), (">", False, 120), ("<", True, 135)])
def test_grey_of_sixteen_bits(order: str, white_is_zero: bool, grey: int) -> None:
    pixels = np.full(WIDTH * HEIGHT, 120 * 257, f"{order}u2").tobytes()
    picture = grey_tiff(16, pixels, order=order, white_is_zero=white_is_zero)
    assert decode_image(picture, LIMITS).getpixel((3, 3)) == (grey, grey, grey)


def test_grey_of_twelve_bits() -> None:
    picture = grey_tiff(12, b"\x78\x07\x80" * (WIDTH * HEIGHT // 2))
    assert decode_image(picture, LIMITS).getpixel((3, 3)) == (120, 120, 120)


@pytest.mark.parametrize("grey", [0, 120, 200, 255])
def test_grey_of_thirty_two_bits(grey: int) -> None:
    pixels = np.full(WIDTH * HEIGHT, grey << 24, "<u4").tobytes()
    assert decode_image(grey_tiff(32, pixels), LIMITS).getpixel((3, 3)) == (grey, grey, grey)


@pytest.mark.parametrize("bits", [16, 32])
def test_signed_samples_are_refused(bits: int) -> None:
    pixels = np.full(WIDTH * HEIGHT, 1000, f"<i{bits // 8}").tobytes()
    with pytest.raises(InvalidRequest, match="signed, whose scale the file does not tell"):
        probe_image(grey_tiff(bits, pixels, is_signed=True), LIMITS)


def test_a_tiff_of_a_rare_kind_is_called_one() -> None:
    with pytest.raises(InvalidRequest, match="the TIFF does not decode"):
        probe_image(grey_tiff(12, b"\x78\x07\x80" * (WIDTH * HEIGHT // 2), order=">"), LIMITS)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"garbage", b"Exif\0\0garbage", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff\1\x12"]
)
def test_broken_exif_turns_nothing(format: str, exif: bytes) -> None:
    picture = samples.image(64, 48, format=format, exif=exif)
    assert (probe_image(picture, LIMITS).width, decode_image(picture, LIMITS).size) == (64, (64, 48))


@pytest.mark.parametrize("tag", [ExifTags.Base.Make, ExifTags.Base.DateTime, ExifTags.Base.Copyright])
def test_a_text_of_another_type_in_the_exif_keeps_no_picture_from_being_turned(tag: int) -> None:
    """Pillow cannot write such an EXIF anew."""
    entries = struct.pack("<HHII", ExifTags.Base.Orientation, 3, 1, 6), struct.pack("<HHII", tag, 5, 1, 38)
    table = b"".join(sorted(entries, key=lambda entry: struct.unpack("<H", entry[:2])))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + table + struct.pack("<III", 0, 1, 3)
    assert decode_image(samples.image(64, 48, format="JPEG", exif=exif), LIMITS).size == (48, 64)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_turned_upright(format: str, orientation: int) -> None:
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:24, :32], upright[:24, 32:], upright[24:, :32] = (200, 100, 50), (20, 180, 60), (40, 60, 220)
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    picture, exif, file = Image.fromarray(upright), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    stored = picture.transpose(turns[orientation]) if orientation in turns else picture
    stored.save(file, format, exif=exif, **({} if format == "TIFF" else {"quality": 95}))
    decoded = np.asarray(decode_image(file.getvalue(), LIMITS)).astype(int)
    assert decoded.shape == upright.shape
    assert np.abs(decoded[4:20, 4:28] - (200, 100, 50)).max() < 16
    assert np.abs(decoded[28:44, 4:28] - (40, 60, 220)).max() < 16
