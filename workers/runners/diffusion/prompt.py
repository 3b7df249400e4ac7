"""``DiffusionPrompt``: the engine prompt of a diffusion stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_jobs.pipelines.parameters import StageParameters
from workers.stages.types import TensorTree


@dataclass(frozen=True, slots=True)
class DiffusionPrompt:
    """The engine prompt of a diffusion stage, which its model reads (``workers.runners.diffusion.model``).

    tensors   tensors, lists and dicts of tensors by name, on the CPU
    values    JSON values by name
    previews  whether the job asked for previews of what it will become
    """

    tensors: Mapping[str, TensorTree]
    values: Mapping[str, Any]
    parameters: StageParameters
    seed: int
    previews: bool = False
