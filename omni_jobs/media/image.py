"""Decode pictures with Pillow to RGB: of several frames or pages the first."""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from PIL import AvifImagePlugin, Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.colour import FileSamples, in_srgb
from omni_jobs.media.formats import KNOWN, format_of
from omni_jobs.media.info import ImageInfo

if TYPE_CHECKING:
    from omni_jobs.media.media_limits import MediaLimits

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "TIFF", "BMP")
# A TIFF's codings that are read; the others are rare, and their decoders old.
_TIFF_CODINGS = frozenset(
    {
        "raw", "tiff_ccitt", "group3", "group4", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "tiff_deflate", "packbits",
        "zstd", "webp",
    }
)  # fmt: skip
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a TIFF's tag, and its value for a negative
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
Image.MAX_IMAGE_PIXELS = None  # ``MediaLimits`` bound them, before anything is decoded
# A JPEG's markers that a segment follows, and its end marker; coded pixels contain none of them.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)
_SOS, _EOI = 0xDA, 0xD9


def header_of_image(data: bytes | memoryview, limits: MediaLimits) -> ImageInfo:
    """Return the ImageInfo of a header, not yet turned upright. Raise as ``decode_image``, so far as it shows."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        return ImageInfo(_media_type(image, data), *image.size)


def probe_image(data: bytes | memoryview, limits: MediaLimits) -> ImageInfo:
    """Check an image's header, decode it, and return its ImageInfo once upright. Raise as ``decode_image``."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        return ImageInfo(_media_type(image, data), *_upright(image).size)


def decode_image(data: bytes | memoryview, limits: MediaLimits, *, keeps_opacity: bool = False) -> Image.Image:
    """Return a Pillow image: RGB in sRGB, upright by its EXIF, on white where it is transparent.

    With ``keeps_opacity`` an image that is transparent somewhere is RGBA, and lies on nothing. Raise InvalidRequest
    for bytes that do not decode, and RequestTooLarge for too many pixels, or scans of a JPEG.
    """
    with _opened(data) as image:
        _check_header(image, data, limits)
        samples = _samples(image)
        coloured, opacity = in_srgb(_upright(image), samples)
    if opacity is None:
        return coloured
    coloured.putalpha(opacity)
    if keeps_opacity:
        return coloured
    white = Image.new("RGBA", coloured.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, coloured).convert("RGB")


def _media_type(image: Image.Image, data: bytes | memoryview) -> str:
    format = format_of("image", data)
    return format.media_type if format is not None else str(Image.MIME[image.format or ""])


def _samples(image: Image.Image) -> FileSamples:
    """Return how the file of an image that is not loaded has its samples."""
    tile = image.tile[0] if isinstance(image, ImageFile.ImageFile) and image.tile else None
    args = tile.args if tile is not None else ""
    name = args[0] if isinstance(args, tuple) and args else args
    is_negative = isinstance(image, TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    return FileSamples(name if isinstance(name, str) else "", is_negative)


def _check_header(image: Image.Image, data: bytes | memoryview, limits: MediaLimits) -> None:
    check_size("image", *image.size, limits.max_image_pixels)
    if image.mode == "F" or _samples(image).is_signed:
        kind = "fractions" if image.mode == "F" else "signed"
        raise InvalidRequest(f"the image's samples are {kind}, whose scale the file does not tell")
    coding = image.info.get("compression", "raw") if image.format == "TIFF" else "raw"
    if coding not in _TIFF_CODINGS:
        raise InvalidRequest(f"the TIFF's coding is {coding}; known: {', '.join(sorted(_TIFF_CODINGS))}")
    if isinstance(image, JpegImageFile):  # includes MPO, several JPEGs of which the first starts the file
        pixels = image.width * image.height
        max_scans = max(1, min(limits.max_image_scans, limits.max_scanned_pixels // pixels))
        if _count_scans(data, max_scans) > max_scans:
            raise RequestTooLarge(
                f"the JPEG has more than {max_scans} scans; no more are taken at {pixels} pixels"
                " (max_image_scans, max_scanned_pixels)"
            )


def _count_scans(data: bytes | memoryview, enough: int) -> int:
    """Count a JPEG's scans, each a pass of the decoder over its pixels; stop counting above ``enough``.

    Walk the markers as libjpeg does: from the start, skipping the bytes of segments.
    """
    scans, at = 0, 2
    while scans <= enough and (mark := _MARKER.search(data, at)) is not None:
        at = mark.end()
        name = data[at - 1]
        if name == _EOI or at + 2 > len(data):
            break
        scans += name == _SOS
        at += int.from_bytes(data[at : at + 2], "big")
    return scans


def check_size(medium: str, width: int, height: int, max_pixels: int) -> None:
    """Raise RequestTooLarge for more than ``max_pixels``. ``medium``, image or video, stands in the message."""
    if width * height > max_pixels:
        raise RequestTooLarge(
            f"the {medium} has {width}×{height} pixels; at most {max_pixels} are taken (max_image_pixels)"
        )


@contextmanager
def _opened(data: bytes | memoryview) -> Iterator[Image.Image]:
    """Open an image for a block; raise Pillow's errors in the block as InvalidRequest."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            yield image
    except UnidentifiedImageError:
        format = format_of("image", data)
        if format is not None:
            raise InvalidRequest(
                f"the {format.name.upper()} does not decode: it is damaged, or of a rare kind"
            ) from None
        raise InvalidRequest(f"not an image this server knows: {KNOWN['image']}") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise InvalidRequest(f"the image does not decode: {error}") from None


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # first, because a PNG's EXIF may stand behind its pixels
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is odd in it
            ImageOps.exif_transpose(image, in_place=True)
    except (SyntaxError, ValueError, LookupError, TypeError, AttributeError, OSError, struct.error):
        pass  # its EXIF is broken: cameras and editors write such, and Pillow fails where it writes it anew
    return image
