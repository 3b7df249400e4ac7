"""What steps of several pictures gain in the engine, with layers of Qwen-Image's transformer at their real width."""

import time
from pathlib import Path

import pytest
import torch

from tests.gpu import large_checkpoints
from tests.gpu.components import QWEN_IMAGE
from tests.gpu.conftest import Record
from tests.gpu.large_checkpoints import LARGE, SMALL
from tests.gpu.rows import run, synchronize
from workers.models.qwen_image.denoiser import load_denoiser
from workers.stages.engine_args import OmniModelConfig

STEPS = 6
RUNS = 3


def test_pictures_together_take_less_than_one_by_one(
    qwen_image: Path, tmp_path_factory: pytest.TempPathFactory, device: torch.device, quick: bool, record: Record
) -> None:
    sizes = SMALL if quick else LARGE
    path = large_checkpoints.qwen_image(qwen_image, tmp_path_factory.mktemp("large") / "qwen_image", device, sizes)
    model = load_denoiser(OmniModelConfig(path, "qwen_image", "denoise"), device, None)
    for side in (64,) if quick else (256, 512, 1024):
        for rows in (1, 4):
            prompts = [QWEN_IMAGE.prompt(n, steps=STEPS, width=side, height=side) for n in range(rows)]
            seconds = []
            for _ in range(RUNS + 1):
                synchronize(device)
                begin = time.perf_counter()
                callers = run(model, prompts, device)
                synchronize(device)
                seconds.append(time.perf_counter() - begin)
                assert all(each.tensor("latents").isfinite().all() for each in callers)
            name = f"engine, {side} x {side}, guided, {sizes.layers} layers, {rows} pictures together"
            record(name, "steps of a picture a second", [rows * STEPS / each for each in seconds[1:]])
