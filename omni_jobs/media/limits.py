"""The limits of a medium as plain numbers, because decoders read no settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_jobs.settings import Settings


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The settings of the same names: seconds, samples, channels, Hz, frames, pixels and scans."""

    max_audio_s: float
    max_audio_samples: int
    max_audio_channels: int
    max_audio_rate: int
    max_video_s: float
    max_video_frames: int
    max_image_pixels: int
    max_image_scans: int
    max_scanned_pixels: int

    @classmethod
    def of(cls, settings: Settings) -> MediaLimits:
        """Copy the limits from the settings."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
