"""Rows of a diffusion engine and their callers, without a stage around them."""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from omni_jobs.errors import StageError
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import Cost, DiffusionModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.types import OmniModelRunnerOutput


class Caller:
    """Waits for a row's output until ``leave``. Implements ``RowCaller``."""

    snapshots = None

    def __init__(self, prompt: DiffusionPrompt, cost: Cost) -> None:
        self.prompt = prompt
        self.cost = cost
        self.steps_done = 0
        self.pictures: list[torch.Tensor] = []  # previews
        self.under_way = threading.Event()
        self.result: OmniModelRunnerOutput | StageError | None = None
        self._left = False

    @property
    def wanted(self) -> bool:
        return self.result is None and not self._left

    def report(self, done: int, total: int) -> None:
        self.steps_done = done
        self.under_way.set()

    def show(self, picture: torch.Tensor) -> None:
        self.pictures.append(picture)

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        self.result = result

    def leave(self) -> None:
        self._left = True

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the output, on the CPU. Raises the row's error."""
        if not isinstance(self.result, OmniModelRunnerOutput):
            raise self.result or RuntimeError("no output")
        found: torch.Tensor = self.result.multimodal_outputs[name]
        return found


def engine(model: Any, device: torch.device, budget: StepBudget | None = None) -> GPUDiffusionModelRunner:
    return GPUDiffusionModelRunner(model, device, budget or StepBudget(model.max_batch_cost, 64))


def run(
    model: Any, prompts: Sequence[DiffusionPrompt], device: torch.device, budget: StepBudget | None = None
) -> list[Caller]:
    """Run prompts together to the end of each."""
    runner = engine(model, device, budget)
    callers = [caller(model, prompt) for prompt in prompts]
    for each in callers:
        runner.add(each)
    while runner.execute_model():
        pass
    return callers


def caller(model: DiffusionModel, prompt: DiffusionPrompt) -> Caller:
    return Caller(prompt, model.check(prompt))


def alone(model: Any, prompts: Sequence[DiffusionPrompt], device: torch.device) -> list[Caller]:
    """Run prompts one after another."""
    return [run(model, [prompt], device)[0] for prompt in prompts]


def largest_differences(some: Sequence[Caller], others: Sequence[Caller], name: str) -> list[float]:
    """Return for each pair of callers the largest difference of this tensor of their outputs."""
    return [float((one.tensor(name) - other.tensor(name)).abs().max()) for one, other in zip(some, others, strict=True)]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
