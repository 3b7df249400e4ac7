"""``Schedule``: the times of one picture's steps, from noise to the picture.

The formulas are those of Diffusers' ``GlmImagePipeline``. Its version 0.40 conditions the transformer on shifted times,
because its scheduler drops the times that the pipeline gives it (github.com/huggingface/diffusers/issues/14461). The
transformer was trained on times that are not shifted, and so they are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

_EULER = "FlowMatchEulerDiscreteScheduler"
_NOT_EULER = ("stochastic_sampling", "invert_sigmas")  # settings with which a step is another than Euler's


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of S steps, float32 on the CPU.

    times   [S]: whole numbers from 999 on downwards, on which the transformer is conditioned
    sigmas  [S + 1], from 1 (noise) to 0 (the picture): step i goes from sigmas[i] to sigmas[i + 1]
    """

    times: torch.Tensor
    sigmas: torch.Tensor

    @property
    def steps(self) -> int:
        return len(self.times)


class Schedules:
    """Makes the schedules of one checkpoint, by its own scheduler's settings."""

    def __init__(self, checkpoint: Path) -> None:
        """Read the settings. Raise ConfigError when they are missing or not those of Euler's method."""
        path = checkpoint / "scheduler" / "scheduler_config.json"
        self._config = read_json(path)
        if self._config.get("_class_name") != _EULER:
            raise ConfigError(f"{self._config.get('_class_name')}, not {_EULER}", file=str(path), field="_class_name")
        for name in _NOT_EULER:
            if self._config.get(name):
                raise ConfigError("is not supported", file=str(path), field=name)

    def of(self, patches: int, steps: int) -> Schedule:
        """Return the schedule of a picture of so many patches: larger ones have more steps near the noise."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        scheduler: Any = FlowMatchEulerDiscreteScheduler.from_config(self._config)
        trained = scheduler.config.num_train_timesteps
        times = np.linspace(trained, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
        scheduler.set_timesteps(sigmas=times / trained, mu=self._shift(patches))
        return Schedule(torch.from_numpy(times) - 1, scheduler.sigmas)

    def _shift(self, patches: int) -> float:
        """Return how far the times are shifted to the noise. Source: ``calculate_shift`` of the pipeline."""
        side = (patches / self._config.get("base_image_seq_len", 256)) ** 0.5
        return float(side * self._config.get("max_shift", 0.75) + self._config.get("base_shift", 0.25))
