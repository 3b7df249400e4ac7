"""``encode_image``: pixels as a PNG, JPEG or WebP file.

Metadata stand where each kind of file has a place for them: in a PNG as a text chunk for each name, in a JPEG or WebP
as JSON in the EXIF field UserComment. All name omni-jobs as their software.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from omni_jobs.errors import ModelError
from workers.encoders.flow_data import check_format, check_sides, tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _PictureFormat:
    """A format as Pillow knows it; ``longest`` is its longest side in pixels, ``transparent`` whether it can be so."""

    name: str
    longest: int
    transparent: bool
    options: Mapping[str, Any]


_FORMATS: Mapping[str, _PictureFormat] = {
    "png": _PictureFormat("PNG", 65_500, True, {"compress_level": 6}),
    # A model's picture is often text or flat colour, whose edges blur where colours have half the resolution.
    "jpeg": _PictureFormat("JPEG", 65_500, False, {"quality": 90, "subsampling": "4:4:4"}),
    "webp": _PictureFormat("WEBP", 16_383, True, {"quality": 90, "method": 4}),
}


_SOFTWARE = "omni-jobs"
_ASCII = b"ASCII\0\0\0"  # EXIF's name for the characters of a UserComment
_NO_METADATA: Mapping[str, str] = MappingProxyType({})


def encode_image(
    tensors: Mapping[str, NDArray[Any]],
    values: Mapping[str, Any],
    format: str,
    metadata: Mapping[str, str] = _NO_METADATA,
) -> bytes:
    """Return pixels as the bytes of a picture: png (lossless), jpeg (quality 90, 4:4:4) or webp (quality 90).

    ``tensors`` has ``pixels``: uint8 [H, W, 3], RGB; and may have ``opacity``: uint8 [H, W], which a png and a webp
    keep; a jpeg has none, and shows the picture on white. No value is read. ``metadata``: texts by name, which are
    written into the file; a name has 1 to 79 characters.

    Raises ModelError naming ``pixels`` for another type or shape, no pixels, or a side longer than the format's: 65,500
    pixels for png and jpeg, 16,383 for webp; ConfigError for another format.
    """
    check_format(format, _FORMATS)
    pixels = tensor_of(tensors, "pixels", np.uint8, "HW3")
    known = _FORMATS[format]
    check_sides(pixels, "pixels", format, known.longest)
    picture = _picture(pixels, tensors, transparent=known.transparent)
    file = io.BytesIO()
    try:
        picture.save(file, known.name, **known.options, **_written(metadata, known.name))
    except (OSError, ValueError) as error:  # Pillow's, where its encoder gives up
        raise ModelError(f"the pixels do not encode as {format}: {error}", field="pixels") from error
    return file.getvalue()


def _picture(pixels: NDArray[Any], tensors: Mapping[str, NDArray[Any]], *, transparent: bool) -> Image.Image:
    """Return pixels as a Pillow image: RGB, or RGBA where they have an opacity and the format is ``transparent``."""
    picture = Image.fromarray(pixels)
    if "opacity" not in tensors:
        return picture
    opacity = tensor_of(tensors, "opacity", np.uint8, "HW")
    if opacity.shape != pixels.shape[:2]:
        raise ModelError(f"an opacity {list(opacity.shape)} is none of these pixels", field="opacity")
    picture.putalpha(Image.fromarray(opacity))
    if transparent:
        return picture
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture).convert("RGB")


def _written(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the options with which Pillow writes metadata into a file of the format that it calls ``name``."""
    if not metadata:
        return {}
    if name == "PNG":
        text = PngInfo()
        for key, value in {"Software": _SOFTWARE, **metadata}.items():
            text.add_text(key, value)
        return {"pnginfo": text}
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = _SOFTWARE
    comment = _ASCII + json.dumps(dict(metadata)).encode("ascii")
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    return {"exif": exif}
