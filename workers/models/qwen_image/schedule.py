"""``qwen_schedule``: the times that Qwen-Image takes for a picture's steps.

The transformer was trained on sigma x 1000, so on times that are shifted as the sigmas are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workers.models.pictures.schedule import Schedule, euler_scheduler
from workers.models.qwen_image.size import Size


def qwen_schedule(config: Mapping[str, Any], size: Size, steps: int) -> Schedule:
    """Return a picture's schedule by its scheduler's settings: larger ones have more of their steps near the noise."""
    # Of a single step, which goes from noise to the end, the stretch to the last time would be 0 / 0.
    config = config if steps > 1 else {**config, "shift_terminal": None}
    scheduler = euler_scheduler(config, np.linspace(1.0, 1 / steps, steps), _shift(config, size))
    return Schedule(scheduler.sigmas, scheduler.timesteps)


def _shift(config: Mapping[str, Any], size: Size) -> float:
    """Return how far the times are shifted to the noise: linear in the tokens of the picture.

    Source: Diffusers, ``calculate_shift`` of pipeline_qwenimage.py.
    """
    base_tokens = config.get("base_image_seq_len", 256)
    base_shift = config.get("base_shift", 0.5)
    slope = (config.get("max_shift", 1.15) - base_shift) / (config.get("max_image_seq_len", 4096) - base_tokens)
    return float(size.tokens * slope + (base_shift - slope * base_tokens))
