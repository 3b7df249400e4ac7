"""Qwen-Image's stages in the diffusion engine: prompts that come, leave and fail while others run."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.qwen_image_prompts import prompt, run
from workers.models.qwen_image.latents import noise, unpack
from workers.models.qwen_image.size import Size
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import Progress


def args(checkpoint: Path, component: str, **engine: Any) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, "qwen_image", component)
    return OmniEngineArgs(component, model, "cpu", None, max_in_flight=16, engine=DiffusionEngine(**engine))


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture
async def denoise(checkpoint: Path) -> AsyncIterator[DiffusionRunner]:
    runner = DiffusionRunner(args(checkpoint, "denoise", max_batch_cost=200))
    await runner.start()
    yield runner
    await runner.close()


def mixed(choice: random.Random) -> DiffusionPrompt:
    height, width = choice.choice([(32, 64), (64, 32), (48, 64)])
    return prompt(
        choice.randint(1, 30),
        choice.choice([None, 3, 9]),
        seed=choice.randint(0, 99),
        steps=choice.randint(1, 12),
        true_cfg_scale=choice.choice([1.0, 2.0, 4.0]),
        height=height,
        width=width,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_twelve_mixed_rows_with_cancels_and_a_lack_of_memory(denoise: DiffusionRunner, seed: int) -> None:
    """Each is as alone, within 1e-5; and pictures of other sizes never share a forward."""
    choice = random.Random(seed)
    prompts = [mixed(choice) for _ in range(15)]
    cancelled = set(choice.sample(range(15), 3))
    model: Any = denoise._worker.model_runner.model
    alone = [run(model, [each])[0].tensors["latents"] for each in prompts]
    sizes, failures = list[int](), [0]

    def note(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        shapes = {shape for (shape,) in given["img_shapes"]}
        assert len(shapes) == 1
        ((_, rows, columns),) = shapes
        assert given["hidden_states"].shape[1] == rows * columns
        sizes.append(len(given["hidden_states"]))
        if sizes[-1] > 1 and failures[0] < 2:
            failures[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory")

    async def late(number: int) -> Any:
        for _ in range(choice.randint(0, 3)):
            await asyncio.sleep(0.01)
        reached = asyncio.Event()

        def seen(progress: Progress) -> None:
            if progress.done >= min(2, progress.total or 1):
                reached.set()

        running = asyncio.create_task(denoise.run(prompts[number], seen))
        if number in cancelled:
            await reached.wait()
            running.cancel()
        return (await asyncio.gather(running, return_exceptions=True))[0]

    hook = model._transformer.register_forward_pre_hook(note, with_kwargs=True)
    outputs = await asyncio.gather(*map(late, range(15)))
    hook.remove()
    assert max(sizes) > 1
    assert failures[0] > 0
    for number, (output, expected) in enumerate(zip(outputs, alone, strict=True)):
        if number in cancelled and isinstance(output, asyncio.CancelledError):
            continue
        assert torch.allclose(output.multimodal_outputs["latents"], expected, rtol=0, atol=1e-5)  # type: ignore[arg-type]


async def test_progress_counts_steps_and_tiles(checkpoint: Path, denoise: DiffusionRunner) -> None:
    seen: list[Progress] = []
    await denoise.run(prompt(steps=3), seen.append)
    assert [(each.done, each.total) for each in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    decode = DiffusionRunner(args(checkpoint, "decode"))
    await decode.start()
    seen.clear()
    model: Any = decode._worker.model_runner.model
    model._whole, model._tile, model._stride = MemoryLimit(0), 64, 48
    size = Size(96, 128)
    output = await decode.run(
        DiffusionPrompt({"latents": unpack(noise(size, 0), size)}, {}, StageParameters(), 0), seen.append
    )
    await decode.close()
    assert [(each.done, each.total) for each in seen] == [(n, 7) for n in range(1, 8)]
    assert output.multimodal_outputs["pixels"].shape == (96, 128, 3)


@pytest.mark.parametrize("component", ["denoise", "decode"])
async def test_a_wrong_prompt_names_its_field_and_the_engine_lives_on(checkpoint: Path, component: str) -> None:
    size = Size(48, 64)
    latents = DiffusionPrompt({"latents": unpack(noise(size, 0), size)}, {}, StageParameters(), 0)
    right = prompt(steps=1) if component == "denoise" else latents
    name, tensor = next(iter(right.tensors.items()))
    assert isinstance(tensor, torch.Tensor)
    engine = DiffusionRunner(args(checkpoint, component))
    await engine.start()
    wrongs = ((tensor[:, :-1], f"{name}.shape"), (tensor.long(), f"{name}.dtype"), (tensor / 0, name))
    for wrong, field in wrongs:
        with pytest.raises(ModelError) as refused:
            await engine.run(replace(right, tensors={name: wrong}), nothing)
        assert refused.value.field == field
    output = await engine.run(right, nothing)
    await engine.close()
    assert set(output.multimodal_outputs) == {"latents" if component == "denoise" else "pixels"}
