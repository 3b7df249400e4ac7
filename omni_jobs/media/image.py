"""Images: PNG, JPEG, WebP and GIF (its first frame) through Pillow → RGB."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import ImageInfo

if TYPE_CHECKING:
    from omni_jobs.media.limits import MediaLimits
    from omni_jobs.settings import Settings

__all__ = ["check_size", "decode_image", "header_of_image", "probe_image"]

MIN_SIDE = 28  # pixels: one merged patch of Qwen's vision encoders
MAX_RATIO = 200  # of the longer side to the shorter: what their processors take

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# A JPEG's markers with a segment after them, and its end; none of them stands among the coded pixels.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)
_SOS, _EOI = 0xDA, 0xD9

_BROKEN = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning)


def header_of_image(data: bytes | memoryview, limits: MediaLimits | Settings) -> ImageInfo:
    """What the header alone says; sides as stored. Raises InvalidRequest or RequestTooLarge."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        return ImageInfo(str(Image.MIME[image.format or ""]), *image.size)


def probe_image(data: bytes | memoryview, limits: MediaLimits | Settings) -> ImageInfo:
    """Check it from the header, then decode it. Raises InvalidRequest or RequestTooLarge."""
    with _opened(data) as image:
        _check_header(image, data, limits)
        media_type = str(Image.MIME[image.format or ""])
        upright = _upright(image)
    return ImageInfo(media_type, *upright.size)


def decode_image(data: bytes | memoryview, limits: MediaLimits | Settings | None = None) -> Image.Image:
    """RGB, turned upright as its EXIF says, transparency on white. Raises InvalidRequest or RequestTooLarge."""
    with _opened(data) as image:
        if limits is not None:
            _check_header(image, data, limits)
        return _rgb(_upright(image))


def _check_header(image: Image.Image, data: bytes | memoryview, limits: MediaLimits | Settings) -> None:
    check_size("image", *image.size, limits.max_image_pixels)
    if isinstance(image, JpegImageFile):  # one of several pictures (MPO) as well, whose first starts the file
        pixels = image.width * image.height
        most = max(1, min(limits.max_image_scans, limits.max_scanned_pixels // pixels))
        if _scans(data, most) > most:
            raise RequestTooLarge(f"the JPEG has more than {most} scans; no more are taken at {pixels} pixels")


def _scans(data: bytes | memoryview, enough: int) -> int:
    """How often a decoder of this JPEG goes over its pixels; it stops counting after ``enough``.

    Its markers from the start on, as libjpeg walks them: a segment's bytes are passed over.
    """
    found, at = 0, 2
    while found <= enough and (mark := _MARKER.search(data, at)) is not None:
        at = mark.end()
        name = data[at - 1]
        if name == _EOI:
            break
        if at + 2 > len(data):
            break
        found += name == _SOS
        at += int.from_bytes(data[at : at + 2], "big")
    return found


def check_size(what: str, width: int, height: int, max_pixels: int) -> None:
    """Raises InvalidRequest or RequestTooLarge for sides that no model takes."""
    if width * height > max_pixels:
        raise RequestTooLarge(f"the {what} has {width}×{height} pixels; at most {max_pixels} are taken")
    if min(width, height) < MIN_SIDE:
        raise InvalidRequest(f"the {what} has {width}×{height} pixels; each side needs at least {MIN_SIDE}")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidRequest(f"the {what} has {width}×{height} pixels; its sides differ by more than {MAX_RATIO} times")


def _opened(data: bytes | memoryview) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise InvalidRequest("not an image this server knows: PNG, JPEG, WebP or GIF") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestTooLarge(f"the image is too large: {error}") from None
    except _BROKEN as error:
        raise InvalidRequest(f"the image does not decode: {error}") from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        image.load()
        return ImageOps.exif_transpose(image)
    except _BROKEN as error:
        raise InvalidRequest(f"the image does not decode: {error}") from None


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
