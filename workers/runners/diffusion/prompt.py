"""``DiffusionPrompt``: the engine prompt of a diffusion stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from workers.stages.types import Parameters, TensorTree


@dataclass(frozen=True, slots=True)
class DiffusionPrompt(Generic[Parameters]):
    """The engine prompt of a diffusion stage, which its model reads (``workers.runners.diffusion.model``).

    tensors     tensors, lists and dicts of tensors by name, on the CPU
    values      JSON values by name
    parameters  of the class that the component declares, which its runner has checked
    previews    whether the job asked for previews of what it will become
    """

    tensors: Mapping[str, TensorTree]
    values: Mapping[str, Any]
    parameters: Parameters
    seed: int
    previews: bool = False
