"""``Schedule``: the times of one job's steps, from noise to the picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json
from workers.models.qwen_image.latents import Size

_EULER = "FlowMatchEulerDiscreteScheduler"
_NOT_EULER = ("stochastic_sampling", "invert_sigmas")  # settings with which a step is another than Euler's


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of S steps, float32 on the CPU.

    sigmas  [S + 1], from 1 (noise) to 0 (the picture): step i goes from sigmas[i] to sigmas[i + 1]
    times   [S], as the transformer was trained on them: sigma x 1000
    """

    sigmas: torch.Tensor
    times: torch.Tensor

    @property
    def steps(self) -> int:
        return len(self.times)


class Schedules:
    """Makes the schedules of one checkpoint, by its own scheduler's settings."""

    def __init__(self, checkpoint: Path) -> None:
        """Read the settings. Raises ConfigError when they are missing or not those of Euler's method."""
        path = checkpoint / "scheduler" / "scheduler_config.json"
        self._config = read_json(path)
        if self._config.get("_class_name") != _EULER:
            raise ConfigError(f"{self._config.get('_class_name')}, not {_EULER}", file=str(path), field="_class_name")
        for name in _NOT_EULER:
            if self._config.get(name):
                raise ConfigError("is not supported", file=str(path), field=name)

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
