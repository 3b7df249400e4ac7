"""``glm_schedule``: the times that GLM-Image takes for a picture's steps.

The formulas are those of Diffusers' ``GlmImagePipeline``. Its version 0.40 conditions the transformer on shifted times,
because its scheduler drops the times that the pipeline gives it (github.com/huggingface/diffusers/issues/14461). The
transformer was trained on times that are not shifted, and so they are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from workers.models.pictures.schedule import Schedule, euler_scheduler


def glm_schedule(config: Mapping[str, Any], patches: int, steps: int) -> Schedule:
    """Return a picture's schedule by its scheduler's settings: larger ones have more of their steps near the noise."""
    trained = config.get("num_train_timesteps", 1000)
    times = np.linspace(trained, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
    side = (patches / config.get("base_image_seq_len", 256)) ** 0.5
    shift = float(side * config.get("max_shift", 0.75) + config.get("base_shift", 0.25))
    return Schedule(euler_scheduler(config, times / trained, shift).sigmas, torch.from_numpy(times) - 1)
