"""LoRA modules of pictures: rows with either of two adapters and without, in one step, equal the merged checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_jobs.errors import ConfigError, ModelError
from tests.integration.runners.codec_prompts import nothing
from tests.integration.runners.lora_snapshots import check_resumed_alone_by
from tests.integration.runners.qwen_image_edits import edit_prompt, picture
from tests.integration.runners.qwen_image_prompts import prompt, run
from tests.oracles.picture_lora import build_picture_adapter, layers_of, merge_picture_adapter
from workers.models.glm_image.denoise import Denoise, load_denoise
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser, load_editor
from workers.models.qwen_image.source_encoder import load_source_encoder
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.model import AdaptableModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

CPU = torch.device("cpu")
NAMES = ("loud", "s.oft")
ROWS = (None, "loud", "s.oft", "loud", None)


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One as PEFT saves it, of rank 4, and one as Diffusers does, of rank 2."""
    directory = tmp_path_factory.mktemp("lora")
    return {
        "loud": build_picture_adapter(checkpoint, directory / "loud", 1),
        "s.oft": build_picture_adapter(checkpoint, directory / "soft", 2, rank=2, by_diffusers=True),
    }


@pytest.fixture(scope="module")
def merged(
    checkpoint: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str | None, Denoiser]:
    directory = tmp_path_factory.mktemp("merged")
    found: dict[str | None, Denoiser] = {None: load(checkpoint)}
    for name, adapter in adapters.items():
        found[name] = load(merge_picture_adapter(checkpoint, adapter, directory / name))
    return found


@pytest.fixture(scope="module")
def model(checkpoint: Path, adapters: dict[str, Path]) -> Denoiser:
    return adapted(load(checkpoint), adapters)


def load(checkpoint: Path) -> Denoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, None)


def adapted(model: Denoiser, adapters: dict[str, Path]) -> Denoiser:
    model.adapt({name: str(directory) for name, directory in adapters.items()})
    return model


def latents(outputs: list[Any]) -> list[torch.Tensor]:
    return [output.tensors["latents"] for output in outputs]


def test_a_batch_with_two_adapters_and_without_equals_the_merged_checkpoints(
    model: Denoiser, merged: dict[str | None, Denoiser]
) -> None:
    rows = [prompt(5 + n, 3 if n else None, seed=n, steps=2 + n, lora=lora) for n, lora in enumerate(ROWS)]
    together = latents(run(model, rows, late=(0, 1, 0, 2, 0)))
    plain = [prompt(5 + n, 3 if n else None, seed=n, steps=2 + n) for n in range(len(ROWS))]
    for lora, found, given in zip(ROWS, together, plain, strict=True):
        (expected,) = latents(run(merged[lora], [given]))
        assert torch.allclose(found, expected, rtol=0, atol=1e-4), lora
        if lora is not None:
            assert not torch.allclose(found, latents(run(merged[None], [given]))[0], rtol=0, atol=1e-2)


def test_a_row_without_an_adapter_has_the_bits_of_the_model_as_it_is(
    model: Denoiser, merged: dict[str | None, Denoiser]
) -> None:
    (alone,), (plain,) = latents(run(model, [prompt()])), latents(run(merged[None], [prompt()]))
    assert torch.equal(alone, plain)


def test_both_halves_of_guidance_in_one_forward_have_the_adapter(model: Denoiser) -> None:
    rows = [prompt(seed=n, lora=lora) for n, lora in enumerate(ROWS)]
    apart = latents(run(model, rows))
    model.joint.units = 10_000
    try:
        joint = latents(run(model, rows))
    finally:
        model.joint.units = 0
    for one, other in zip(apart, joint, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)


def test_an_edit_whose_times_are_two_for_each_row_has_its_adapter(
    tiny_qwen_image_edits: Callable[[int], Path], tmp_path: Path
) -> None:
    checkpoint = tiny_qwen_image_edits(0)
    adapter = build_picture_adapter(checkpoint, tmp_path / "loud", 3)
    encoder = load_source_encoder(OmniModelConfig(checkpoint, "qwen_image_edit", "sources"), CPU, None)

    def editor(path: Path) -> Denoiser:
        return load_editor(OmniModelConfig(path, "qwen_image_edit", "denoise"), CPU, None)

    def edit(lora: str | None) -> DiffusionPrompt:
        return edit_prompt(encoder, [picture(64, 64)], 6, 4, steps=2, lora=lora)

    model = adapted(editor(checkpoint), {"loud": adapter})
    found = latents(run(model, [edit(None), edit("loud")]))
    for path, each in ((checkpoint, found[0]), (merge_picture_adapter(checkpoint, adapter, tmp_path / "m"), found[1])):
        (expected,) = latents(run(editor(path), [edit(None)]))
        assert torch.allclose(each, expected, rtol=0, atol=1e-4)


def test_glm_image_has_adapters_too_of_its_sources_and_texts(
    tiny_glm_images: Callable[[int], Path], tmp_path: Path
) -> None:
    checkpoint = tiny_glm_images(0)
    adapter = build_picture_adapter(checkpoint, tmp_path / "loud", 3)

    def glm(path: Path) -> Denoise:
        return load_denoise(OmniModelConfig(path, "glm_image", "denoise"), CPU, None)

    def draw(lora: str | None, text: str = "Open") -> DiffusionPrompt:
        ids = torch.arange(6) * 100
        source = {"source_ids": [ids.view(2, 3)], "source_latents": [torch.ones(16, 8, 12)]}
        values = {"height": 64, "width": 96, "glyph_texts": [text]}
        return DiffusionPrompt({"token_ids": ids, **source}, values, DenoiseParameters(steps=2, lora=lora), 5)

    model = glm(checkpoint)
    model.adapt({"loud": str(adapter)})
    found = latents(run(model, [draw(None), draw("loud", "Shut"), draw("loud", "a" * 60)]))
    merged = glm(merge_picture_adapter(checkpoint, adapter, tmp_path / "merged"))
    expected = [(glm(checkpoint), draw(None)), (merged, draw(None, "Shut")), (merged, draw(None, "a" * 60))]
    for each, (alone, given) in zip(found, expected, strict=True):
        assert torch.allclose(each, latents(run(alone, [given]))[0], rtol=0, atol=1e-4)


def test_a_snapshot_is_resumed_with_the_same_adapter_alone(model: Denoiser) -> None:
    others = [prompt(seed=3, lora=other) for other in (None, "s.oft")]
    check_resumed_alone_by(model, prompt(seed=3, lora="loud"), others)


def test_a_job_that_names_an_unknown_one_is_refused(model: Denoiser) -> None:
    with pytest.raises(ModelError, match=r"it has loud, s\.oft") as refused:
        model.check(prompt(lora="other"))
    assert refused.value.field == "lora"


def rewritten(adapter: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


FIRST = "base_model.model.transformer_blocks.0.attn.to_q"
WRONG: list[tuple[str, Callable[[dict[str, torch.Tensor]], None], str]] = [
    (
        "another layer",
        lambda w: w.update({"base_model.model.unet.0.lora_A.weight": torch.zeros(4, 8)}),
        "another model",
    ),
    ("half a pair", lambda w: w.pop(f"{FIRST}.lora_B.weight"), "another model"),
    ("another width", lambda w: w.update({f"{FIRST}.lora_A.weight": torch.zeros(4, 9)}), r"\[4, 9\], and \[4, 64\]"),
    (
        "another rank",
        lambda w: w.update(
            {f"{FIRST}.lora_A.weight": torch.zeros(3, 64), f"{FIRST}.lora_B.weight": torch.zeros(64, 3)}
        ),
        "PEFT cannot",
    ),
    ("a magnitude", lambda w: w.update({f"{FIRST}.lora_magnitude_vector": torch.zeros(64)}), "another model"),
    ("nothing", lambda w: w.clear(), "no weights"),
]


@pytest.mark.parametrize(("change", "message"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_an_adapter_of_another_model_is_refused(
    checkpoint: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    adapter = build_picture_adapter(checkpoint, tmp_path / "adapter", 1)
    rewritten(adapter, change)
    with pytest.raises(ConfigError, match=message) as refused:
        adapted(load(checkpoint), {"mine": adapter})
    assert refused.value.field == "engine.lora_modules.mine"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"use_dora": True}, "not supported"), ({"bias": "all"}, "not supported"), ({"peft_type": "LOHA"}, "LOHA")],
)
def test_what_is_no_plain_lora_is_refused(
    checkpoint: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    adapter = build_picture_adapter(checkpoint, tmp_path / "adapter", 1)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    with pytest.raises(ConfigError, match=message) as refused:
        adapted(load(checkpoint), {"mine": adapter})
    assert refused.value.field == "engine.lora_modules.mine"


@pytest.mark.parametrize("gone", [None, "adapter_model.safetensors", "adapter_config.json"])
def test_a_directory_that_holds_no_adapter_is_refused(checkpoint: Path, tmp_path: Path, gone: str | None) -> None:
    adapter = tmp_path / "adapter"
    if gone is not None:
        (build_picture_adapter(checkpoint, adapter, 1) / gone).unlink()
    with pytest.raises(ConfigError, match=r"lacks this file|no such") as refused:
        adapted(load(checkpoint), {"mine": adapter})
    assert refused.value.field == "engine.lora_modules.mine"


def test_every_linear_layer_of_the_transformer_takes_one(model: Denoiser, checkpoint: Path) -> None:
    assert isinstance(model, AdaptableModel)
    assert len(layers_of(checkpoint)) > 30


async def test_an_engine_loads_the_adapters_of_its_stage(
    checkpoint: Path, adapters: dict[str, Path], model: Denoiser
) -> None:
    modules = {name: str(directory) for name, directory in adapters.items()}

    def engine(component: str, **settings: Any) -> DiffusionRunner:
        stage = OmniModelConfig(checkpoint, "qwen_image", component)
        return DiffusionRunner(OmniEngineArgs("draw", stage, "cpu", None, 4, DiffusionEngine(**settings)))

    runner = engine("denoise", lora_modules=modules)
    await runner.start()
    try:
        output = await runner.run(prompt(lora="loud"), nothing)
        with pytest.raises(ModelError):
            await runner.run(prompt(lora="other"), nothing)
    finally:
        await runner.close()
    assert torch.equal(output.multimodal_outputs["latents"], latents(run(model, [prompt(lora="loud")]))[0])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes no lora_modules") as refused:
        await engine("decode", lora_modules=modules).start()
    assert (refused.value.field, refused.value.stage) == ("engine.lora_modules", "draw")
