"""``QwenVision``: how many tokens Qwen's vision encoders make of a picture, and of a video."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import ImageInfo, VideoInfo
from omni_jobs.prompts.checkpoint_files import processor_part

MOST_RATIO = 200
"""Of the longer side to the shorter: the processors of Qwen's vision encoders take no more."""

MIN_FRAME_PIXELS = 128 * 28 * 28
"""Of a video's frame once it is resized, at least, where the processor reads no such value from the checkpoint."""

MAX_FRAME_PIXELS = 768 * 28 * 28
"""At most, likewise."""


@dataclass(frozen=True, slots=True)
class QwenVision:
    """What an image processor of Qwen2-VL's kind does, as its settings say.

    patch                   pixels to a side of a patch
    merge                   patches to a side of a token
    temporal                frames of a patch
    min_pixels, max_pixels  of a picture once it is resized
    """

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def read(cls, directory: Path) -> QwenVision:
        """Read the settings of pictures in a directory. Raise ConfigError for a file that is missing or unreadable."""
        return cls._of(processor_part(directory, "image_processor"), 56 * 56, 28 * 28 * 1280)

    @classmethod
    def read_frames(cls, directory: Path) -> QwenVision:
        """Read those of videos, whose frames are resized each like a picture. Raise ConfigError as ``read`` does."""
        return cls._of(processor_part(directory, "video_processor"), MIN_FRAME_PIXELS, MAX_FRAME_PIXELS)

    @classmethod
    def _of(cls, settings: Mapping[str, Any], min_pixels: int, max_pixels: int) -> QwenVision:
        """Return what the settings say, with these pixels where they say none."""
        size = settings.get("size") or {}
        return cls(
            patch=int(settings.get("patch_size", 14)),
            merge=int(settings.get("merge_size", 2)),
            temporal=int(settings.get("temporal_patch_size", 2)),
            min_pixels=int(settings.get("min_pixels") or size.get("shortest_edge") or min_pixels),
            max_pixels=int(settings.get("max_pixels") or size.get("longest_edge") or max_pixels),
        )

    def check(self, height: int, width: int, field: str) -> None:
        """Raise InvalidRequest, naming ``field``, for a picture or frame that the encoder's processor does not take."""
        least = self.patch * self.merge
        found = f"{width}×{height} pixels"
        if min(height, width) < least:
            raise InvalidRequest(f"{found}; each side needs at least {least} for this model", field=field)
        if max(height, width) > MOST_RATIO * min(height, width):
            raise InvalidRequest(
                f"{found}; its sides differ by more than {MOST_RATIO} times, more than this model takes", field=field
            )

    def tokens(self, height: int, width: int) -> int:
        """Count the tokens of a picture or a frame of this size: its merged patches after resizing."""
        factor = self.patch * self.merge
        resized_height, resized_width = smart_resize(height, width, factor, self.min_pixels, self.max_pixels)
        return (resized_height // factor) * (resized_width // factor)


def visual_tokens(info: ImageInfo | VideoInfo, field: str, pictures: QwenVision, frames: QwenVision) -> int:
    """Count the tokens of a picture or a video, whose part of a message is ``field``.

    ``pictures`` and ``frames``: what the processor does with either. Raise InvalidRequest, naming the place, for sides
    that it does not take.
    """
    if isinstance(info, ImageInfo):
        pictures.check(info.height, info.width, f"{field}.image_url.url")
        return pictures.tokens(info.height, info.width)
    frames.check(info.height, info.width, f"{field}.video_url.url")
    return -(-info.frames // frames.temporal) * frames.tokens(info.height, info.width)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the height and width to which Qwen's image processors resize an image.

    They are multiples of ``factor`` within the pixel limits. Source: Transformers,
    models/qwen2_vl/image_processing_qwen2_vl.py.
    """
    near_height, near_width = round(height / factor) * factor, round(width / factor) * factor
    if near_height * near_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if near_height * near_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return near_height, near_width
