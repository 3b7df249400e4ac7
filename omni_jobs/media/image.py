"""Decode PNG, JPEG, WebP and the first frame of a GIF with Pillow to RGB."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import ImageInfo

if TYPE_CHECKING:
    from omni_jobs.media.limits import MediaLimits

MIN_SIDE = 28  # pixels: one merged patch of Qwen's vision encoders
MAX_RATIO = 200  # of the longer side to the shorter; those encoders' processors take no more

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# A JPEG's markers that a segment follows, and its end marker; coded pixels contain none of them.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)
_SOS, _EOI = 0xDA, 0xD9


def header_of_image(data: bytes | memoryview, limits: MediaLimits) -> ImageInfo:
    """Return the ImageInfo of a header, not yet turned upright. Raise as ``decode_image``, so far as it shows."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        return ImageInfo(str(Image.MIME[image.format or ""]), *image.size)


def probe_image(data: bytes | memoryview, limits: MediaLimits) -> ImageInfo:
    """Check an image's header, decode it, and return its ImageInfo once upright. Raise as ``decode_image``."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        return ImageInfo(str(Image.MIME[image.format or ""]), *_upright(image).size)


def decode_image(data: bytes | memoryview, limits: MediaLimits | None = None) -> Image.Image:
    """Return a Pillow image: RGB, upright by its EXIF, on white where transparent. ``limits`` None checks no sizes.

    Raise InvalidRequest for bytes that do not decode, and for sides that are too short or too unequal; raise
    RequestTooLarge for too many pixels, or scans of a JPEG.
    """
    with _opened(data) as image:
        if limits is not None:
            _check_header(image, data, limits)
        return _rgb(_upright(image))


def _check_header(image: Image.Image, data: bytes | memoryview, limits: MediaLimits) -> None:
    check_size("image", *image.size, limits.max_image_pixels)
    if isinstance(image, JpegImageFile):  # includes MPO, several JPEGs of which the first starts the file
        pixels = image.width * image.height
        max_scans = max(1, min(limits.max_image_scans, limits.max_scanned_pixels // pixels))
        if _count_scans(data, max_scans) > max_scans:
            raise RequestTooLarge(f"the JPEG has more than {max_scans} scans; no more are taken at {pixels} pixels")


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
    """Raise RequestTooLarge for more than ``max_pixels``, InvalidRequest for sides that are too short or too unequal.

    ``medium``, image or video, stands in the message.
    """
    found = f"the {medium} has {width}×{height} pixels"
    if width * height > max_pixels:
        raise RequestTooLarge(f"{found}; at most {max_pixels} are taken")
    if min(width, height) < MIN_SIDE:
        raise InvalidRequest(f"{found}; each side needs at least {MIN_SIDE}")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidRequest(f"{found}; its sides differ by more than {MAX_RATIO} times")


@contextmanager
def _opened(data: bytes | memoryview) -> Iterator[Image.Image]:
    """Open an image for a block; raise Pillow's errors in the block as InvalidRequest or RequestTooLarge."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            yield image
    except UnidentifiedImageError:
        raise InvalidRequest("not an image this server knows: PNG, JPEG, WebP or GIF") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestTooLarge(f"the image is too large: {error}") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise InvalidRequest(f"the image does not decode: {error}") from None


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # first, because a PNG's EXIF may stand behind its pixels
    return ImageOps.exif_transpose(image)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode == "I":  # 16-bit grey: Pillow would clip it at 255
        grey = np.asarray(image).astype(np.uint32) >> 8
        return Image.fromarray(grey.clip(max=255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("RGB")
