"""``MediaLimits``: the settings that bound a medium, as plain numbers, because decoders read no settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_jobs.settings import Settings


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The bounds on a medium. Each is the setting of the same name; a scan is a pass over a JPEG's pixels."""

    max_body_bytes: int
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
        """Return the limits of one medium: the settings of the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
