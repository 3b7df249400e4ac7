"""Images: PNG, JPEG, WebP and GIF (its first frame) through Pillow → RGB."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import ImageInfo

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = ["check_size", "decode_image", "probe_image"]

MIN_SIDE = 28  # pixels: one merged patch of Qwen's vision encoders
MAX_RATIO = 200  # of the longer side to the shorter: what their processors take

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning)


def probe_image(data: bytes | memoryview, settings: Settings) -> ImageInfo:
    """Check its size from the header, then decode it. Raises InvalidRequest or RequestTooLarge."""
    with _opened(data) as image:
        check_size("image", *image.size, settings.max_image_pixels)
        media_type = str(Image.MIME[image.format or ""])
        upright = _upright(image)
    return ImageInfo(media_type, *upright.size)


def decode_image(data: bytes | memoryview) -> Image.Image:
    """RGB, turned upright as its EXIF says, transparency on white. Raises InvalidRequest."""
    with _opened(data) as image:
        return _rgb(_upright(image))


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
