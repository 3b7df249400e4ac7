"""Wan's two transformers in 8 bit, and with their blocks in host memory: what they compute then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.test_compact_pictures import FLOAT8, latents, rounded
from tests.integration.runners.wan_prompts import animated, film_prompt
from workers.models.wan.denoiser import FilmDenoiser, load_animator, load_denoiser
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

CPU = torch.device("cpu")
GIVEN = (film_prompt(seed=1, steps=5), film_prompt(9, None, seed=2, steps=3))  # through both, together


@pytest.fixture(scope="module")
def checkpoint(tiny_wans: Callable[[int], Path]) -> Path:
    return tiny_wans(0)


def load(checkpoint: Path, **settings: Any) -> FilmDenoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "wan", "denoise", **settings), CPU, None)


def test_in_8_bit_both_compute_with_rounded_weights(checkpoint: Path) -> None:
    compact, plain = load(checkpoint, weights="float8"), load(checkpoint)
    before = latents(plain, *GIVEN)
    for whole, small in zip(plain.experts.transformers, compact.experts.transformers, strict=True):
        rounded(whole.blocks, small.blocks)
        assert {weight.dtype for name, weight in small.named_parameters() if "blocks" not in name} == {torch.float32}
    assert compact.experts.dtype == torch.float32
    found, expected = latents(compact, *GIVEN), latents(plain, *GIVEN)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
    assert not any(torch.equal(*each) for each in zip(found, before, strict=True))


@pytest.mark.parametrize("weights", [None, "float8"])
def test_offloaded_blocks_of_both_compute_the_same(
    checkpoint: Path, weights: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From host memory to itself, as in test_compact_pictures."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    whole, offloaded = load(checkpoint, weights=weights), load(checkpoint, weights=weights, offload_blocks=True)
    offloaded.offload(CPU)
    for transformer in offloaded.experts.transformers:
        assert all(hasattr(block, "_diffusers_hook") for block in transformer.blocks)
    found, expected = latents(offloaded, *GIVEN), latents(whole, *GIVEN)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


def test_videos_that_begin_with_a_picture_too(
    tiny_wan_i2vs: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    checkpoint = tiny_wan_i2vs(0)

    def animator(**settings: Any) -> FilmDenoiser:
        return load_animator(OmniModelConfig(checkpoint, "wan_i2v", "denoise", **settings), CPU, None)

    given = animated(seed=1)
    small, both = animator(weights="float8"), animator(weights="float8", offload_blocks=True)
    both.offload(CPU)
    kept = [weight.dtype for each in small.experts.transformers for weight in each.blocks.parameters()]
    assert kept.count(FLOAT8) > len(kept) / 2
    assert torch.equal(latents(both, given)[0], latents(small, given)[0])


async def test_an_engine_loads_what_its_settings_say(checkpoint: Path) -> None:
    model = OmniModelConfig(checkpoint, "wan", "denoise")
    runner = DiffusionRunner(OmniEngineArgs("film", model, "cpu", None, 4, DiffusionEngine(weights="float8")))
    await runner.start()
    try:
        output = await runner.run(GIVEN[0], nothing)
    finally:
        await runner.close()
    (expected,) = run(load(checkpoint, weights="float8"), [GIVEN[0]])
    assert torch.equal(output.multimodal_outputs["latents"], expected.tensors["latents"])  # type: ignore[arg-type]
