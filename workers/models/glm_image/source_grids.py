"""``SourceGrids``: how many image tokens a source picture has, which a job edits.

The language model sees a source picture as a grid of tokens as it sees its own. So a source picture is enlarged or
shrunk to sides that are multiples of 32, about within bounds that the checkpoint's processor has. The formula is that
of Transformers' ``GlmImageImageProcessor``; a test compares the two.
"""

import math
from pathlib import Path
from typing import NamedTuple

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.prompts.checkpoint_files import positive, processor_part
from workers.models.glm_image.grids import PIXELS, Grid

MOST_SOURCES = 4
"""The most pictures of a message: for each, the transformer keeps about 1.3 GB for 1024 x 1024 pixels in bfloat16."""

_MOST_RATIO = 4  # of the longer side to the shorter; Transformers' processor takes no more
_PATCH = PIXELS // 2  # pixels of a token's side where the model looks: it sees the picture at half its size
SHORTEST = _PATCH


class SourceGrids(NamedTuple):
    """The bounds that a checkpoint's processor has: of the shorter side, and of the longer, in pixels."""

    shortest: int
    longest: int

    @classmethod
    def read(cls, processor: Path) -> "SourceGrids":
        """Read the bounds. Raise ConfigError when they are missing, or a token is no patch of 16 pixels."""
        settings, file = processor_part(processor, "image_processor"), str(processor / "processor_config.json")
        if positive(settings, ("patch_size",), file) * positive(settings, ("merge_size",), file) != _PATCH:
            raise ConfigError(f"patches of {_PATCH} pixels are due", file=file, field="image_processor.patch_size")
        if positive(settings, ("temporal_patch_size",), file) != 1:
            raise ConfigError("1 is due", file=file, field="image_processor.temporal_patch_size")
        size = settings.get("size") or {}
        bounds = {
            "shortest_edge": settings.get("min_pixels") or size.get("shortest_edge"),
            "longest_edge": settings.get("max_pixels") or size.get("longest_edge"),
        }
        return cls(*(round(math.sqrt(positive(bounds, (name,), file))) for name in bounds))

    def of(self, height: int, width: int, field: str) -> Grid:
        """Return the grid of a source picture of this size in pixels. Raise InvalidRequest, naming ``field``."""
        found = f"the picture has {width}×{height} pixels"
        if min(height, width) < SHORTEST:
            raise InvalidRequest(f"{found}; each side needs at least {SHORTEST}", field=field)
        if max(height, width) > _MOST_RATIO * min(height, width):
            raise InvalidRequest(f"{found}; its sides differ by more than {_MOST_RATIO} times", field=field)
        scale = max(1.0, self.shortest / min(height, width))
        if max(height, width) * scale > self.longest:
            scale = self.longest / max(height, width)
        rows, columns = (max(1, round(side // 2 * scale / _PATCH)) for side in (height, width))
        return Grid(rows, columns)
