"""``Solver``: the steps of one video, from noise to latents by UniPC, a multistep method, as Diffusers takes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

if TYPE_CHECKING:
    import torch

    from workers.runners.diffusion.saved_row import SavedRow

_UNIPC = "UniPCMultistepScheduler"
_DUE: Mapping[str, tuple[Any, Any]] = {  # setting → Diffusers' default, and what a model of flows needs
    "prediction_type": ("epsilon", "flow_prediction"),
    "use_flow_sigmas": (False, True),
    "predict_x0": (True, True),
    "thresholding": (False, False),
    "solver_p": (None, None),
    "use_karras_sigmas": (False, False),
    "use_exponential_sigmas": (False, False),
    "use_beta_sigmas": (False, False),
    "use_dynamic_shifting": (False, False),
    "final_sigmas_type": ("zero", "zero"),
}


def read_unipc_config(checkpoint: Path) -> Mapping[str, Any]:
    """Return the settings of a checkpoint's scheduler. Raises ConfigError when they are missing or not those of UniPC.

    UniPC of another kind of model, such as one that predicts noise, is refused, too.
    """
    path = checkpoint / "scheduler" / "scheduler_config.json"
    config = read_json(path)
    if config.get("_class_name") != _UNIPC:
        raise ConfigError(f"{config.get('_class_name')}, not {_UNIPC}", file=str(path), field="_class_name")
    for name, (default, due) in _DUE.items():
        if config.get(name, default) != due:
            raise ConfigError(f"{config.get(name, default)!r:.40}, where {due!r} is due", file=str(path), field=name)
    try:
        Solver.of(config, 2)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"cannot be used: {error}", file=str(path)) from error
    return config


class Solver:
    """A video's solver between two steps. It never changes: a step gives the next one."""

    def __init__(self, scheduler: Any, done: int = 0) -> None:
        """Take Diffusers' scheduler, set to the video's steps, of which ``done`` are taken."""
        self._scheduler = scheduler
        self.done = done

    @classmethod
    def of(cls, config: Mapping[str, Any], steps: int) -> Solver:
        """Return the solver before the first of some steps, by the scheduler's settings."""
        from diffusers import UniPCMultistepScheduler

        scheduler: Any = UniPCMultistepScheduler.from_config(config)
        scheduler.set_timesteps(steps)
        scheduler.set_begin_index(0)
        return cls(scheduler)

    @property
    def steps(self) -> int:
        """The number of steps in all."""
        return len(self._scheduler.timesteps)

    @property
    def time(self) -> torch.Tensor:
        """The time of the next step, on which the transformer is conditioned, int64 []: from 999 (noise) downwards."""
        time: torch.Tensor = self._scheduler.timesteps[self.done]
        return time

    @property
    def train_times(self) -> int:
        """The number of times from noise to the video that the model was trained on."""
        return int(self._scheduler.config.num_train_timesteps)

    @property
    def foreseen(self) -> torch.Tensor | None:
        """The latents to which the last step saw the video go, float32; None before the first one."""
        foreseen: torch.Tensor | None = self._scheduler.model_outputs[-1]
        return None if foreseen is None else foreseen[0]

    def at(self, done: int) -> Solver:
        """Return a solver of which ``done`` steps are taken elsewhere: it tells the times, and takes no step."""
        return Solver(self._scheduler, done)

    def step(self, latents: torch.Tensor, velocity: torch.Tensor) -> tuple[torch.Tensor, Solver]:
        """Take a step from float32 ``latents`` [C, F, h, w] along ``velocity``; return latents and the next solver."""
        scheduler = self._copy()
        moved = scheduler.step(velocity[None], self.time, latents[None], return_dict=False)[0][0]
        return moved, Solver(scheduler, self.done + 1)

    def saved(self) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """Return what ``resumed`` needs, on the CPU: nothing before the first step."""
        if not self.done:
            return {}
        outputs = [each for each in self._scheduler.model_outputs if each is not None]
        return {
            "foreseen": [each[0].to("cpu", copy=True) for each in outputs],
            "corrected": self._scheduler.last_sample[0].to("cpu", copy=True),
        }

    def resumed(self, saved: SavedRow, done: int, latents: torch.Tensor) -> Solver:
        """Return a new solver as it was after ``done`` steps; ``latents`` are like those of the row.

        Raises ModelError naming the tensor that is missing or wrong.
        """
        if not done:
            return self
        scheduler, shape = self._copy(), tuple(latents.shape)
        order = scheduler.config.solver_order
        outputs = saved.tensors("foreseen", min(done, order), shape, latents.dtype)
        corrected = saved.tensor("corrected", shape, latents.dtype)
        kept: list[torch.Tensor | None] = [each[None].to(latents.device, copy=True) for each in outputs]
        scheduler.model_outputs = [None] * (order - len(kept)) + kept
        scheduler.last_sample = corrected[None].to(latents.device, copy=True)
        scheduler.lower_order_nums = min(done, order)
        left = self.steps - (done - 1) if scheduler.config.lower_order_final else order  # when the last step was taken
        scheduler.this_order = min(order, left, done)
        scheduler._step_index = done
        return Solver(scheduler, done)

    def _copy(self) -> Any:
        scheduler = copy.copy(self._scheduler)
        scheduler.model_outputs = list(scheduler.model_outputs)
        scheduler.timestep_list = list(scheduler.timestep_list)
        return scheduler
