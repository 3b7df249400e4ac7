"""``Schedule``: the times of one picture's steps, from noise to the picture, by Euler's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_EULER = "FlowMatchEulerDiscreteScheduler"
_NOT_EULER = ("stochastic_sampling", "invert_sigmas")  # settings with which a step is another than Euler's


def read_euler_config(checkpoint: Path) -> Mapping[str, Any]:
    """Return the settings of a checkpoint's scheduler.

    Raises ConfigError when they are missing or not those of Euler's method.
    """
    path = checkpoint / "scheduler" / "scheduler_config.json"
    config = read_json(path)
    if config.get("_class_name") != _EULER:
        raise ConfigError(f"{config.get('_class_name')}, not {_EULER}", file=str(path), field="_class_name")
    for name in _NOT_EULER:
        if config.get(name):
            raise ConfigError("is not supported", file=str(path), field=name)
    return config


def euler_scheduler(config: Mapping[str, Any], sigmas: NDArray[Any], shift: float) -> Any:
    """Return Diffusers' scheduler of these settings, set to ``sigmas``, which it shifts by ``shift`` to the noise."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler: Any = FlowMatchEulerDiscreteScheduler.from_config(config)
    scheduler.set_timesteps(sigmas=sigmas, mu=shift)
    return scheduler


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of S steps, float32 on the CPU.

    sigmas  [S + 1], from 1 (noise) to 0 (the picture): step i goes from sigmas[i] to sigmas[i + 1]
    times   [S], on which the transformer is conditioned, from about 1000 (noise) downwards
    """

    sigmas: torch.Tensor
    times: torch.Tensor

    @property
    def steps(self) -> int:
        return len(self.times)
