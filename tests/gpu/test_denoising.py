"""Qwen-Image's denoising on the tiny checkpoint in float32: a picture is the same in any company and on any device."""

import threading
import time
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import Record
from tests.gpu.rows import alone, caller, engine, largest_differences, run, synchronize
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser
from workers.models.qwen_image.latents import unpack
from workers.models.qwen_image.parameters import DrawParameters
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")
WIDTH = 128  # of the tiny text encoder's rows
ROUNDING = 1e-5  # of values of about 1


def prompt(
    seed: int, *, steps: int, tokens: int = 9, scale: float = 4.0, side: int = 64, height: int = 64
) -> DiffusionPrompt:
    generator = torch.Generator().manual_seed(seed)
    tensors = {"prompt_embeds": torch.randn(tokens, WIDTH, generator=generator)}
    if scale > 1:
        tensors["negative_prompt_embeds"] = torch.randn(5, WIDTH, generator=generator)
    parameters = DrawParameters(width=side, height=height, steps=steps, true_cfg_scale=scale)
    return DiffusionPrompt(tensors, {}, parameters, seed)


MIXED = [
    prompt(n, steps=4 + 3 * (n % 4), tokens=3 + 5 * (n % 3), scale=(1.0, 4.0, 7.5)[n % 3], side=64 if n % 4 else 96)
    for n in range(12)
]


def load(checkpoint: Path, device: torch.device) -> Denoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), device, "float32")


@pytest.fixture(scope="module")
def model(qwen_image: Path, device: torch.device) -> Denoiser:
    torch.backends.cuda.matmul.allow_tf32 = False
    return load(qwen_image, device)


def test_twelve_mixed_rows_equal_each_alone(model: Denoiser, record: Record) -> None:
    together, each = run(model, MIXED, model.device), alone(model, MIXED, model.device)
    differences = largest_differences(together, each, "latents")
    record("12 mixed rows: largest difference from each alone", "", differences)
    assert max(differences) <= ROUNDING


def test_rows_equal_those_of_the_cpu(model: Denoiser, qwen_image: Path, record: Record) -> None:
    cpu = load(qwen_image, CPU)
    some, others = alone(model, MIXED[:4], model.device), alone(cpu, MIXED[:4], CPU)
    differences = largest_differences(some, others, "latents")
    record("a row: largest difference from the CPU's", "", differences)
    assert max(differences) <= 10 * ROUNDING


def test_a_row_goes_on_from_a_snapshot_of_the_cpu(model: Denoiser, qwen_image: Path, record: Record) -> None:
    """In float32; in another dtype it is refused."""
    cpu = load(qwen_image, CPU)
    whole = prompt(3, steps=20)
    with torch.inference_mode():
        begun = cpu.begin(whole)
        for _ in range(11):
            cpu.step([begun])
        saved = cpu.save(begun)
        resumed = model.resume(whole, saved.tensors, saved.values)
        for _ in range(9):
            model.step([resumed])
    (reference,) = alone(cpu, [whole], CPU)
    difference = float((unpack(resumed.latents.cpu(), resumed.size) - reference.tensor("latents")).abs().max())
    record("a row begun on the CPU: largest difference at its end", "", [difference])
    assert difference <= 10 * ROUNDING


def test_a_cancelled_row_leaves_within_a_second(model: Denoiser, device: torch.device, record: Record) -> None:
    """Steps are enqueued ahead of a GPU, but only a few."""
    seconds = []
    for seed in range(5):
        runner, cancelled = engine(model, device), caller(model, prompt(seed, steps=200))
        runner.add(cancelled)
        thread = threading.Thread(target=lambda runner=runner: [None for _ in iter(runner.execute_model, False)])
        thread.start()
        assert cancelled.under_way.wait(60)
        begin = time.perf_counter()
        cancelled.leave()
        thread.join(60)
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
        assert cancelled.steps_done < 200
    record("cancel → device free", "s", seconds)
    assert max(seconds) < 1


def test_what_lacks_memory_together_runs_in_smaller_steps(
    model: Denoiser, device: torch.device, record: Record
) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU's allocator has no limit of its own")
    prompts = [prompt(n, steps=3, side=1024, height=1024) for n in range(48)]
    peaks, references = [], []
    for some in (prompts[:1], prompts):
        torch.cuda.reset_peak_memory_stats(device)
        references = run(model, some, device, StepBudget(1 << 30, 64))
        peaks.append(torch.cuda.max_memory_allocated(device))
    torch.cuda.empty_cache()
    share = sum(peaks) / 2 / torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        budget = StepBudget(1 << 30, 64)
        found = run(model, prompts, device, budget)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert budget.units < budget.max_units, f"half of {peaks} bytes was no limit"
    differences = largest_differences(found, references, "latents")
    record("rows after a lack of memory: largest difference", "", differences)
    assert max(differences) <= 10 * ROUNDING
