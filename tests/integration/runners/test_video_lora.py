"""LoRA modules of Wan: for either transformer or both, in one step with rows without, they equal merged checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanPipeline
from safetensors.torch import save_file

from omni_jobs.errors import ConfigError, ModelError
from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.lora_snapshots import check_resumed_alone_by
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.wan_prompts import animated, film_prompt
from tests.oracles.picture_lora import build_picture_adapter, merge_picture_adapter
from workers.models.wan.denoiser import FilmDenoiser, load_animator, load_denoiser
from workers.models.wan.model_index import EXPERTS
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.model import AdaptableModel
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

CPU = torch.device("cpu")
FOLDERS = {"first": EXPERTS[:1], "second": EXPERTS[1:], "both": EXPERTS}


@pytest.fixture(scope="module")
def checkpoint(tiny_wans: Callable[[int], Path]) -> Path:
    return tiny_wans(0)


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For the first transformer as PEFT saves it, for the second one as Diffusers does, and for both."""
    directory = tmp_path_factory.mktemp("lora")
    for seed, (name, parts) in enumerate(FOLDERS.items()):
        for part in parts:
            build_picture_adapter(
                checkpoint, directory / name / part, seed, rank=2 + seed, by_diffusers=part == EXPERTS[1], part=part
            )
    return {name: directory / name for name in FOLDERS}


@pytest.fixture(scope="module")
def merged(
    checkpoint: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str | None, FilmDenoiser]:
    directory = tmp_path_factory.mktemp("merged")
    found: dict[str | None, FilmDenoiser] = {None: load(checkpoint)}
    for name, parts in FOLDERS.items():
        path = checkpoint
        for part in parts:
            path = merge_picture_adapter(path, adapters[name] / part, directory / f"{name}-{part}", part)
        found[name] = load(path)
    return found


@pytest.fixture(scope="module")
def model(checkpoint: Path, adapters: dict[str, Path]) -> FilmDenoiser:
    return adapted(load(checkpoint), adapters)


def load(checkpoint: Path, **settings: Any) -> FilmDenoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "wan", "denoise", **settings), CPU, None)


def adapted(model: FilmDenoiser, adapters: dict[str, Path]) -> FilmDenoiser:
    model.adapt({name: str(directory) for name, directory in adapters.items()})
    return model


def latents(outputs: list[Any]) -> list[torch.Tensor]:
    return [output.tensors["latents"] for output in outputs]


def near(one: torch.Tensor, other: torch.Tensor, bound: float) -> bool:
    return bool((one - other).abs().max() <= bound * other.abs().max())


def test_a_batch_with_adapters_and_without_equals_the_merged_checkpoints(
    model: FilmDenoiser, merged: dict[str | None, FilmDenoiser]
) -> None:
    """Rows of a step are on either side of the boundary."""
    rows = [film_prompt(5 + n, 3 if n else None, seed=n, steps=4 + n, lora=lora) for n, lora in enumerate(merged)]
    together = latents(run(model, rows, late=(0, 1, 0, 2)))
    for (lora, alone), found, given in zip(merged.items(), together, rows, strict=True):
        plain = film_prompt(5 + given.seed, 3 if given.seed else None, seed=given.seed, steps=4 + given.seed)
        assert near(found, latents(run(alone, [plain]))[0], 1e-4), lora
        if lora is not None:
            assert not near(found, latents(run(merged[None], [plain]))[0], 1e-2)


def test_a_row_without_an_adapter_has_the_bits_of_the_model_as_it_is(
    model: FilmDenoiser, merged: dict[str | None, FilmDenoiser]
) -> None:
    (alone,), (plain,) = latents(run(model, [film_prompt()])), latents(run(merged[None], [film_prompt()]))
    assert torch.equal(alone, plain)


def test_a_video_that_begins_with_a_picture_has_its_adapter(
    tiny_wan_i2vs: Callable[[int], Path], tmp_path: Path
) -> None:
    checkpoint = tiny_wan_i2vs(0)
    adapter = tmp_path / "loud"
    build_picture_adapter(checkpoint, adapter / EXPERTS[1], 3, part=EXPERTS[1])
    merged = merge_picture_adapter(checkpoint, adapter / EXPERTS[1], tmp_path / "merged", EXPERTS[1])

    def animator(path: Path) -> FilmDenoiser:
        return load_animator(OmniModelConfig(path, "wan_i2v", "denoise"), CPU, None)

    (found,) = latents(run(adapted(animator(checkpoint), {"loud": adapter}), [animated(lora="loud")]))
    assert near(found, latents(run(animator(merged), [animated()]))[0], 1e-4)


def test_adapters_of_offloaded_blocks_compute_the_same(
    checkpoint: Path, adapters: dict[str, Path], model: FilmDenoiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU)
    offloaded = adapted(load(checkpoint, offload_blocks=True), adapters)
    offloaded.offload(CPU)
    given = [film_prompt(seed=1, lora="both"), film_prompt(seed=2, lora="second")]
    for found, expected in zip(latents(run(offloaded, given)), latents(run(model, given)), strict=True):
        assert torch.equal(found, expected)


def test_a_snapshot_is_resumed_with_the_same_adapter_alone(model: FilmDenoiser) -> None:
    others = [film_prompt(seed=3, lora=other) for other in (None, "first", "second")]
    check_resumed_alone_by(model, film_prompt(seed=3, lora="both"), others)


def test_a_job_that_names_an_unknown_one_is_refused(model: FilmDenoiser) -> None:
    assert isinstance(model, AdaptableModel)
    with pytest.raises(ModelError, match=r"it has both, first, second") as refused:
        model.check(film_prompt(lora="other"))
    assert refused.value.field == "lora"


@pytest.mark.parametrize("part", [None, *EXPERTS])
def test_an_adapter_of_another_model_is_refused(
    checkpoint: Path, tiny_qwen_images: Callable[[int], Path], tmp_path: Path, part: str | None
) -> None:
    """In a folder that says for what it is, and in none."""
    directory = tmp_path / "adapter"
    build_picture_adapter(tiny_qwen_images(0), directory / (part or ""), 1)
    message = "another model" if part else "no folder transformer or transformer_2"
    with pytest.raises(ConfigError, match=message) as refused:
        adapted(load(checkpoint), {"mine": directory})
    assert refused.value.field == "engine.lora_modules.mine"
    assert str(refused.value.file or refused.value).find(str(directory)) >= 0


def test_an_adapter_whose_directory_is_missing_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/none: no such checkpoint directory") as refused:
        adapted(load(checkpoint), {"mine": tmp_path / "none"})
    assert refused.value.field == "engine.lora_modules.mine"


def test_an_adapter_of_original_names_is_taken_once_diffusers_has_renamed_it(checkpoint: Path, tmp_path: Path) -> None:
    """As docs/videos.md tells."""
    layer, width = "diffusion_model.blocks.0.self_attn.q", 48
    original = {f"{layer}.lora_A.weight": torch.ones(4, width), f"{layer}.lora_B.weight": torch.ones(width, 4)}
    file = tmp_path / "fast" / EXPERTS[0] / "pytorch_lora_weights.safetensors"
    file.parent.mkdir(parents=True)
    save_file(original, file)
    with pytest.raises(ConfigError, match=r"another model: it has 'diffusion_model\.blocks\.0"):
        adapted(load(checkpoint), {"fast": tmp_path / "fast"})

    save_file(WanPipeline.lora_state_dict(str(file)), file)
    (found,) = latents(run(adapted(load(checkpoint), {"fast": tmp_path / "fast"}), [film_prompt(lora="fast")]))
    assert not torch.equal(found, latents(run(load(checkpoint), [film_prompt()]))[0])


async def test_an_engine_loads_the_adapters_of_its_stage(
    checkpoint: Path, adapters: dict[str, Path], model: FilmDenoiser
) -> None:
    stage = OmniModelConfig(checkpoint, "wan", "denoise")
    engine = DiffusionEngine(lora_modules={name: str(directory) for name, directory in adapters.items()})
    runner = DiffusionRunner(OmniEngineArgs("film", stage, "cpu", None, 4, engine))
    await runner.start()
    try:
        output = await runner.run(film_prompt(lora="second"), nothing)
    finally:
        await runner.close()
    (expected,) = latents(run(model, [film_prompt(lora="second")]))
    assert torch.equal(output.multimodal_outputs["latents"], expected)  # type: ignore[arg-type]
