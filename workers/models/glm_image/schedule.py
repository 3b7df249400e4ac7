"""``GlmSchedules``: the times that GLM-Image takes for a picture's steps.

The formulas are those of Diffusers' ``GlmImagePipeline``. Its version 0.40 conditions the transformer on shifted times,
because its scheduler drops the times that the pipeline gives it (github.com/huggingface/diffusers/issues/14461). The
transformer was trained on times that are not shifted, and so they are here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.models.pictures.schedule import Schedule, read_euler_config


class GlmSchedules:
    """Makes the schedules of one checkpoint, by its own scheduler's settings."""

    def __init__(self, checkpoint: Path) -> None:
        """Read the settings. Raises ConfigError when they are missing or not those of Euler's method."""
        self._config = read_euler_config(checkpoint)

    def of(self, patches: int, steps: int) -> Schedule:
        """Return the schedule of a picture of ``patches``: larger pictures have more steps near the noise."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        scheduler: Any = FlowMatchEulerDiscreteScheduler.from_config(self._config)
        trained = scheduler.config.num_train_timesteps
        times = np.linspace(trained, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
        scheduler.set_timesteps(sigmas=times / trained, mu=self._shift(patches))
        return Schedule(scheduler.sigmas, torch.from_numpy(times) - 1)

    def _shift(self, patches: int) -> float:
        """Return how far the times are shifted to the noise. Source: ``calculate_shift`` of the pipeline."""
        side = (patches / self._config.get("base_image_seq_len", 256)) ** 0.5
        return float(side * self._config.get("max_shift", 0.75) + self._config.get("base_shift", 0.25))
