"""Files that come with the package: the stage configs and the migrations.

A wheel carries them inside ``omni_jobs``; a checkout has them beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

__all__ = ["bundled"]


def bundled(name: Literal["stage_configs", "migrations"]) -> Path:
    """The directory of that name."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
