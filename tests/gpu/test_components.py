"""Each component of the diffusion engine on its device, in the dtype that it states, beside float32 on a CPU."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.gpu.components import COMPONENTS, Component
from tests.gpu.conftest import Record
from workers.runners.diffusion.diffusion_runner import DiffusionRunner

CPU = torch.device("cpu")
SEEDS = (1, 2, 3)
DENOISE_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}  # of ``auto``; all else runs in float32
BOUNDS = {torch.float32: 1e-2, torch.bfloat16: 0.2}  # of the difference beside the values, both root mean squares


@pytest.mark.parametrize("component", COMPONENTS, ids=str)
@pytest.mark.parametrize("dtype", [None, "float32"], ids=["auto", "float32"])
def test_results_are_near_those_of_the_cpu(
    component: Component, dtype: str | None, device: torch.device, request: pytest.FixtureRequest, record: Record
) -> None:
    checkpoint: Path = request.getfixturevalue(component.family)
    torch.backends.cudnn.allow_tf32 = True  # torch's own default, with which workers run
    found, used = _results(component, checkpoint, device, dtype)
    reference, _ = _results(component, checkpoint, CPU, "float32" if component.name == "denoise" else None)
    due = DENOISE_DTYPES[device.type] if (component.name, dtype) == ("denoise", None) else torch.float32
    assert used == {due}
    differences = [_apart(one, other) for one, other in zip(found, reference, strict=True)]
    record(f"{component} in {dtype or 'auto'}: difference from the CPU's in float32", "of its values", differences)
    assert max(differences) <= BOUNDS[due]


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    assert one.float().isfinite().all()
    return float((one.float() - other.float()).square().mean().sqrt() / other.float().square().mean().sqrt())


def _results(
    component: Component, checkpoint: Path, device: torch.device, dtype: str | None
) -> tuple[list[torch.Tensor], set[torch.dtype]]:
    """Return the outputs of prompts that run together, and the dtypes of the model's transformer or VAE."""

    async def run() -> tuple[list[torch.Tensor], set[torch.dtype]]:
        engine = {} if dtype is None else {"dtype": dtype}
        runner = DiffusionRunner(component.args(checkpoint, device, **engine))
        await runner.start()
        try:
            prompts = [component.prompt(seed) for seed in SEEDS]
            outputs = await asyncio.gather(*(runner.run(prompt, lambda progress: None) for prompt in prompts))
            tensors = [output.multimodal_outputs[component.output] for output in outputs]
            return [each for each in tensors if isinstance(each, torch.Tensor)], _dtypes(runner)
        finally:
            await runner.close()

    return asyncio.run(run())


def _dtypes(runner: DiffusionRunner) -> set[torch.dtype]:
    model = runner._worker.model_runner.model
    parts = [
        getattr(model, name)
        for name in ("_transformer", "experts", "_vae", "token2wav", "_model")
        if hasattr(model, name)
    ]
    return {getattr(part, "dtype", torch.float32) for part in parts}
