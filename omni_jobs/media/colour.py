"""Turn what an image file holds into RGB of the colour space sRGB, and into how opaque each pixel is."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageCms

# What a sample of few bits is multiplied by when Pillow makes eight of them: a PNG's colour key is not.
_SCALES = {"L;2": 85, "L;4": 17}
_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
# The modes that Pillow hands to a transform, by the colour space that a profile is for.
_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab ": "LAB"}


class FileSamples(NamedTuple):
    """How a file has its samples.

    name         as Pillow calls them, such as ``L;4``; empty where it has no name
    is_negative  whether 0 is white; Pillow turns only samples of eight bits or fewer
    """

    name: str
    is_negative: bool = False

    @property
    def is_signed(self) -> bool:
        return self.name.startswith("I") and self.name.endswith("S")


def in_srgb(image: Image.Image, samples: FileSamples) -> tuple[Image.Image, Image.Image | None]:
    """Return a loaded image as RGB in sRGB, and its opacity as an image of mode L; None where all of it is opaque.

    A colour profile is applied, unless it is broken or for images of another kind.
    """
    opacity = _opacity(image, samples.name)
    if opacity is not None and opacity.getextrema()[0] == 255:
        opacity = None
    return _coloured(_base(image, samples), image.info.get("icc_profile")), opacity


def _opacity(image: Image.Image, samples: str) -> Image.Image | None:
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        return image.convert("RGBA").getchannel("A")
    if not image.has_transparency_data:
        return None
    if image.mode == "P":
        return image.convert("RGBA").getchannel("A")
    return _unlike(image, image.info.get("transparency"), samples)


def _unlike(image: Image.Image, key: Any, samples: str) -> Image.Image | None:
    """Return where a picture has not the one colour, its key, that stands for nothing at all."""
    if isinstance(key, int) and image.mode != "RGB":
        if image.mode == "1":
            key = 255 * min(key, 1) if samples else key
        is_key = np.asarray(image if image.mode != "1" else image.convert("L")) == key * _SCALES.get(samples, 1)
    elif isinstance(key, tuple) and len(key) == 3 and image.mode == "RGB":
        wide = samples.startswith("RGB;16")  # of sixteen bits Pillow keeps the upper eight
        is_key = (np.asarray(image) == np.array([value >> 8 if wide else value for value in key])).all(axis=2)
    else:
        return None
    return Image.fromarray(np.where(is_key, np.uint8(0), np.uint8(255)))


def _base(image: Image.Image, samples: FileSamples) -> Image.Image:
    """Return the colours alone, in the mode L, RGB, CMYK or LAB."""
    if image.mode.startswith("I"):  # grey of more than 8 bits: Pillow would clip it at 255
        bits = next((bits for bits in (12, 32) if samples.name.startswith(f"I;{bits}")), 16)
        grey = np.asarray(image).astype(np.int64) % (1 << bits) >> bits - 8
        return Image.fromarray((255 - grey if samples.is_negative else grey).astype(np.uint8))
    if image.mode in ("1", "L", "LA", "La"):
        return image.convert("L")
    if image.mode in ("RGB", "CMYK", "LAB"):
        return image
    if image.mode == "RGBX":
        return image.convert("RGB")
    return image.convert("RGBA").convert("RGB")


def _coloured(base: Image.Image, profile: bytes | None) -> Image.Image:
    if base.mode == "LAB":
        return _applied(ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")), base, "LAB") or base.convert("RGB")
    if profile:
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        except (ImageCms.PyCMSError, OSError):
            return base.convert("RGB")
        mode = _MODES.get(source.profile.xcolor_space)
        if mode == "RGB" and base.mode == "L":  # grey, as programs save it that know RGB alone
            base = base.convert("RGB")
        if mode == base.mode:
            return _applied(source, base, mode) or base.convert("RGB")
    return base.convert("RGB")


def _applied(source: ImageCms.ImageCmsProfile, base: Image.Image, mode: str) -> Image.Image | None:
    """Return the colours of a profile in sRGB; None where it cannot be applied, or changes nothing but by rounding."""
    try:
        transform = ImageCms.buildTransform(source, _SRGB, mode, "RGB", ImageCms.Intent.PERCEPTUAL)
        if mode == "RGB":
            levels = np.arange(0, 256, 17, dtype=np.uint8)
            cube = Image.fromarray(np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(16, 256, 3))
            changed = np.asarray(ImageCms.applyTransform(cube, transform)).astype(int) - np.asarray(cube)
            if np.abs(changed).max() <= 1:
                return None
        return ImageCms.applyTransform(base, transform)
    except ImageCms.PyCMSError:
        return None
