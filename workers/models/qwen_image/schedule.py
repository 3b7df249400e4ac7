"""``QwenSchedules``: the times that Qwen-Image takes for a picture's steps.

The transformer was trained on sigma x 1000, so on times that are shifted as the sigmas are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workers.models.pictures.schedule import Schedule, read_euler_config
from workers.models.qwen_image.size import Size


class QwenSchedules:
    """Makes the schedules of one checkpoint, by its own scheduler's settings."""

    def __init__(self, checkpoint: Path) -> None:
        """Read the settings. Raises ConfigError when they are missing or not those of Euler's method."""
        self._config = read_euler_config(checkpoint)

    def of(self, size: Size, steps: int) -> Schedule:
        """Return the schedule of a picture: larger ones have more of their steps near the noise."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        # Of a single step, which goes from noise to the end, the stretch to the last time would be 0 / 0.
        config = self._config if steps > 1 else {**self._config, "shift_terminal": None}
        scheduler: Any = FlowMatchEulerDiscreteScheduler.from_config(config)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=self._shift(size))
        return Schedule(scheduler.sigmas, scheduler.timesteps)

    def _shift(self, size: Size) -> float:
        """Return how far the times are shifted to the noise: linear in the tokens of the picture.

        Source: Diffusers, ``calculate_shift`` of pipeline_qwenimage.py.
        """
        base_tokens = self._config.get("base_image_seq_len", 256)
        base_shift = self._config.get("base_shift", 0.5)
        rise = self._config.get("max_shift", 1.15) - base_shift
        slope = rise / (self._config.get("max_image_seq_len", 4096) - base_tokens)
        return float(size.tokens * slope + (base_shift - slope * base_tokens))
