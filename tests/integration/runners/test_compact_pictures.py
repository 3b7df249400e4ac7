"""A picture's transformer in 8 bit, and with its blocks in host memory: what it computes then, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from omni_jobs.errors import ConfigError
from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.qwen_image_prompts import prompt, run
from tests.oracles.picture_lora import build_picture_adapter
from workers.models.glm_image.denoise import load_denoise
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

CPU = torch.device("cpu")
FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"loud": str(build_picture_adapter(checkpoint, tmp_path_factory.mktemp("lora") / "loud", 1))}


def load(checkpoint: Path, **settings: Any) -> Denoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise", **settings), CPU, None)


def latents(model: Any, *prompts: DiffusionPrompt) -> list[torch.Tensor]:
    return [output.tensors["latents"] for output in run(model, prompts)]  # type: ignore[misc]


def rounded(plain: torch.nn.Module, compact: torch.nn.Module) -> None:
    """Round those weights of ``plain`` that ``compact`` keeps in 8 bit."""
    kept = dict(compact.named_parameters())
    few = [weight for name, weight in plain.named_parameters() if kept[name].dtype == FLOAT8]
    assert sum(weight.numel() for weight in few) > 0.8 * sum(weight.numel() for weight in plain.parameters())
    for weight in few:
        weight.data = weight.data.to(FLOAT8).to(torch.float32)


def test_in_8_bit_it_computes_with_rounded_weights(checkpoint: Path) -> None:
    compact, plain = load(checkpoint, weights="float8"), load(checkpoint)
    before = latents(plain, prompt())[0]
    rounded(plain._transformer, compact._transformer)
    assert compact.dtype == torch.float32
    found = latents(compact, prompt(), prompt(9, None, seed=2))
    expected = latents(plain, prompt(), prompt(9, None, seed=2))
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
    assert not torch.equal(found[0], before)


def test_glm_image_too(tiny_glm_images: Callable[[int], Path]) -> None:
    model = OmniModelConfig(tiny_glm_images(0), "glm_image", "denoise")
    compact, plain = (load_denoise(replace(model, weights=weights), CPU, None) for weights in ("float8", None))
    rounded(plain._transformer.network, compact._transformer.network)
    values = {"height": 64, "width": 96, "glyph_texts": ["Open"]}
    given = DiffusionPrompt({"token_ids": torch.arange(6) * 100}, values, DenoiseParameters(steps=2), 1)
    assert torch.equal(latents(compact, given)[0], latents(plain, given)[0])


def test_an_adapter_stays_in_full_precision(checkpoint: Path, adapter: dict[str, str]) -> None:
    compact, plain = load(checkpoint, weights="float8"), load(checkpoint)
    rounded(plain._transformer, compact._transformer)
    for model in (compact, plain):
        model.adapt(adapter)
    given = (prompt(lora="loud"), prompt(seed=2))
    for found, expected in zip(latents(compact, *given), latents(plain, *given), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("weights", [None, "float8"])
def test_offloaded_blocks_compute_the_same(
    checkpoint: Path, adapter: dict[str, str], weights: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From host memory to itself: Diffusers asks torch for an accelerator, and on this host the CPU has to be it."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    whole, offloaded = load(checkpoint, weights=weights), load(checkpoint, weights=weights, offload_blocks=True)
    for model in (whole, offloaded):
        model.adapt(adapter)
    offloaded.offload(CPU)
    given = (prompt(lora="loud"), prompt(seed=2))
    found, expected = latents(offloaded, *given), latents(whole, *given)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


def test_glm_image_whose_layers_run_outside_of_the_models_forward_too(
    tiny_glm_images: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that edits another, whose layers run once for its source, beside one that does not."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    checkpoint = tiny_glm_images(0)
    model = OmniModelConfig(checkpoint, "glm_image", "denoise")
    loud = {"loud": str(build_picture_adapter(checkpoint, tmp_path / "loud", 1))}
    whole, offloaded = (load_denoise(replace(model, offload_blocks=each), CPU, None) for each in (False, True))
    for each in (whole, offloaded):
        each.adapt(loud)
    offloaded.offload(CPU)
    blocks: Any = offloaded._transformer.network.transformer_blocks
    assert all(hasattr(block, "_diffusers_hook") for block in blocks)
    ids = torch.arange(6) * 100
    source = {"source_ids": [ids.view(2, 3)], "source_latents": [torch.ones(16, 8, 12)]}
    values = {"height": 64, "width": 96, "glyph_texts": ["Open"]}
    given = [
        DiffusionPrompt({"token_ids": ids, **more}, values, DenoiseParameters(steps=2, lora=lora), 5)
        for more, lora in ((source, None), ({}, "loud"))
    ]
    found, expected = latents(offloaded, *given), latents(whole, *given)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


def args(checkpoint: Path, component: str = "denoise", **engine: Any) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, "qwen_image", component)
    return OmniEngineArgs("draw", model, "cpu", None, 4, DiffusionEngine(**engine))


async def test_an_engine_loads_what_its_settings_say(checkpoint: Path) -> None:
    runner = DiffusionRunner(args(checkpoint, weights="float8"))
    await runner.start()
    output = await runner.run(prompt(), nothing)
    await runner.close()
    expected = latents(load(checkpoint, weights="float8"), prompt())[0]
    assert torch.equal(output.multimodal_outputs["latents"], expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("component", "engine", "field", "message"),
    [
        ("denoise", {"offload_blocks": True}, "engine.offload_blocks", "on a CPU all weights are in host memory"),
        ("decode", {"offload_blocks": True}, "engine.offload_blocks", "takes no offload_blocks"),
        ("decode", {"weights": "float8"}, "engine.weights", "takes no weights"),
    ],
)
def test_what_has_no_sense_is_refused_before_it_loads(
    checkpoint: Path, component: str, engine: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        DiffusionRunner(args(checkpoint, component, **engine))
    assert (caught.value.field, caught.value.stage) == (field, "draw")


def test_offloading_on_a_cpu_is_refused_in_the_file() -> None:
    with pytest.raises(ValidationError, match="set it under cuda") as caught:
        DiffusionEngine.model_validate({"cpu": {"offload_blocks": True}})
    assert caught.value.errors()[0]["loc"] == ("cpu", "offload_blocks")


def test_the_digest_has_8_bits_and_not_where_blocks_lie() -> None:
    def decisive(**engine: Any) -> dict[str, Any]:
        return DiffusionEngine.model_validate(engine).decisive()

    assert decisive(weights="float8", offload_blocks=True) == {"weights": "float8"}
    assert decisive(cuda={"weights": "float8", "dtype": "bfloat16"}) == {
        "cuda": {"weights": "float8", "dtype": "bfloat16"}
    }
    assert decisive(weights="float8", cpu={"weights": None}) == {"weights": "float8", "cpu": {"weights": None}}
    assert decisive(cpu={"weights": None}, cuda={"devices": 2}) == {}
