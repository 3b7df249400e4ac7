"""GLM-Image's denoising and decoding: alone as Diffusers has them bit for bit, and in company as alone."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.qwen_image_prompts import run
from tests.oracles.glm_image import GlmImageReference
from tests.services.checkpoint import TinyCheckpoints
from workers.models.glm_image.denoise import Denoise, load_denoise
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.glm_image.prompts import glyph_texts
from workers.models.glm_image.vae import load_decoder
from workers.models.pictures.decoder import PictureDecoder
from workers.runners.diffusion.model import PreviewingModel, ResumableModel, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import is_tensor_tree

CPU = torch.device("cpu")
TEXT = "A sign \"Open\" above 'Café 24'"


def load(checkpoint: Path, dtype: str | None = None) -> Denoise:
    return load_denoise(OmniModelConfig(checkpoint, "glm_image", "denoise"), CPU, dtype)


def load_vae(checkpoint: Path) -> PictureDecoder:
    return load_decoder(OmniModelConfig(checkpoint, "glm_image", "decode"), CPU, None)


def tokens(height: int, width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed % 1000)
    return torch.randint(0, 16_384, (height // 32 * width // 32,), generator=generator)


def prompt(
    text: str = TEXT, height: int = 64, width: int = 96, *, steps: int = 4, guidance: float = 1.5, seed: int = 0
) -> DiffusionPrompt:
    return DiffusionPrompt(
        {"token_ids": tokens(height, width, seed)},
        {"height": height, "width": width, "glyph_texts": glyph_texts(text)},
        DenoiseParameters(steps=steps, guidance_scale=guidance),
        seed,
    )


def tensor(output: RowOutput, name: str) -> torch.Tensor:
    found = output.tensors[name]
    assert is_tensor_tree(found)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.fixture(scope="module")
def checkpoint(tiny_glm_images: TinyCheckpoints) -> Path:
    return tiny_glm_images(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Denoise:
    return load(checkpoint)


@pytest.fixture(scope="module")
def vae(checkpoint: Path) -> PictureDecoder:
    return load_vae(checkpoint)


# As the reference


@pytest.mark.parametrize("checkpoint_seed", [0, 1, 2])
def test_a_picture_alone_is_that_of_the_reference(checkpoint_seed: int, tiny_glm_images: TinyCheckpoints) -> None:
    checkpoint = tiny_glm_images(checkpoint_seed)
    reference, model, vae = GlmImageReference(checkpoint), load(checkpoint), load_vae(checkpoint)
    cases = [
        (TEXT, 64, 96, 5, 1.5, 0),  # two glyph texts, so with padding
        ("A lighthouse", 64, 64, 3, 1.0, 7),
        ("「灯台」の看板", 256, 64, 4, 4.0, 2**63 - 1),
        ("A lighthouse", 96, 128, 1, 2.0, 8),
        ("", 64, 64, 2, 20.0, 9),
    ]
    for text, height, width, steps, guidance, seed in cases:
        given = prompt(text, height, width, steps=steps, guidance=guidance, seed=seed)
        image_tokens, options = tokens(height, width, seed), {"num_inference_steps": steps, "guidance_scale": guidance}
        expected = reference.latents(text, image_tokens, height, width, seed=seed, **options)
        (output,) = run(model, [given])
        assert torch.equal(tensor(output, "latents"), expected)
        picture = reference.picture(text, image_tokens, height, width, seed=seed, **options)
        (decoded,) = run(vae, [DiffusionPrompt({"latents": expected}, {}, StageParameters(), 0)])
        assert tensor(decoded, "pixels").shape == picture.shape == (height, width, 3)
        assert (tensor(decoded, "pixels").int() - torch.tensor(picture).int()).abs().max() <= 1


def test_tiles_are_those_of_the_reference(checkpoint: Path, vae: PictureDecoder) -> None:
    reference = GlmImageReference(checkpoint).pipeline.vae
    reference.enable_tiling()
    reference.tile_latent_min_size, reference.tile_sample_min_size = 64, 512  # pixels of a tile: 512
    latents = torch.randn(16, 96, 72, generator=torch.Generator().manual_seed(0))
    given = DiffusionPrompt({"latents": latents}, {}, StageParameters(), 0)
    tiled = PictureDecoder(vae._vae, whole_pixels=512 * 512)
    assert (vae.check(given).steps, tiled.check(given).steps) == (1, 4)
    mean, deviation = (
        torch.tensor(reference.config[name]).view(1, -1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    with torch.inference_mode():
        expected = reference.decode(latents[None] * deviation + mean).sample[0]
    pixels = ((expected * 0.5 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0)
    (output,) = run(tiled, [given])
    assert (tensor(output, "pixels") - pixels).abs().max() <= 1
    (whole,) = run(vae, [given])
    assert (tensor(whole, "pixels").int() - tensor(output, "pixels").int()).abs().max() > 1


# In company

ROWS = st.builds(
    prompt,
    st.sampled_from(["x", TEXT, "'yes'", '"' + "a long text, " * 9 + '"', '"' + "as long as can be " * 40 + '"']),
    height=st.sampled_from([64, 96]),
    width=st.just(64),
    steps=st.integers(1, 6),
    guidance=st.sampled_from([1.0, 1.5, 4.0]),
    seed=st.integers(0, 50),
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, min_size=12, max_size=12), late=st.lists(st.integers(0, 8), min_size=12, max_size=12))
def test_rows_in_company_are_as_alone(model: Denoise, rows: list[DiffusionPrompt], late: list[int]) -> None:
    alone = [run(model, [row])[0] for row in rows]
    for one, other in zip(alone, run(model, rows, late), strict=True):
        assert torch.allclose(tensor(one, "latents"), tensor(other, "latents"), rtol=0, atol=1e-5)


def test_the_cost_is_the_tokens_of_a_step_and_sizes_do_not_mix(model: Denoise) -> None:
    bare, guided = (model.check(prompt("x", steps=9, guidance=guidance)) for guidance in (1.0, 1.5))
    assert (bare.units, guided.units, bare.steps) == (25, 50, 9)  # 24 patches and an empty text
    assert model.check(prompt(TEXT)).units > guided.units
    assert bare.group == guided.group != model.check(prompt("x", 96, 64)).group


def test_long_texts_do_not_pad_short_ones(model: Denoise) -> None:
    texts = ["x"] * 3 + ['"' + "long " * 100 + '"']
    with torch.inference_mode():
        rows = [model.begin(prompt(text, guidance=1.0, seed=seed)) for seed, text in enumerate(texts)]
        seen: list[tuple[int, int]] = []
        block = model._transformer._model.transformer_blocks[0]
        hook = block.register_forward_pre_hook(lambda _, args: seen.append((len(args[1]), args[1].shape[1])))
        model.step(rows)
        hook.remove()
    assert seen == [(3, 1), (1, 501)]


def test_alone_both_passes_are_one_forward_where_memory_lets_them(
    checkpoint: Path, model: Denoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompt("A lighthouse", 64, 96, steps=3, guidance=2.0, seed=1)
    (apart,) = run(model, [given])
    other = load(checkpoint)
    assert other.joint.units == 0  # on a CPU
    together: list[int] = []
    velocities, room = other._transformer.velocities, [2]

    def counted(latents: torch.Tensor, *rest: Any) -> torch.Tensor:
        together.append(len(latents))
        if len(latents) > room[0]:
            raise torch.OutOfMemoryError("no memory")
        return velocities(latents, *rest)

    monkeypatch.setattr(other._transformer, "velocities", counted)
    other.joint = MemoryLimit(1 << 20)
    (found,) = run(other, [given])
    assert together == [2, 2, 2]
    assert (tensor(found, "latents") - tensor(apart, "latents")).abs().max() <= 1e-5
    together.clear()
    room[0] = 1
    (found,) = run(other, [given])
    assert together == [2, 1, 1, 1, 1, 1, 1]  # what did not fit once is not tried again
    assert torch.equal(tensor(found, "latents"), tensor(apart, "latents"))
    room[0] = 2
    while together[-1] == 1 and len(together) < 1000:
        run(other, [given])
    assert together[-1] == 2  # memory may be there again after some steps


def test_rows_in_company_take_one_half_of_guidance_after_the_other_where_memory_lacks_for_both(
    checkpoint: Path, model: Denoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [prompt("A lighthouse", steps=2, guidance=2.0, seed=seed) for seed in range(2)]
    alone = [run(model, [row])[0] for row in rows]
    short = load(checkpoint)
    short.joint = MemoryLimit(1 << 20)
    velocities, together = short._transformer.velocities, list[int]()

    def refuse_both(latents: torch.Tensor, *rest: Any) -> torch.Tensor:
        together.append(len(latents))
        if len(together) == 1:
            raise torch.OutOfMemoryError("no memory")
        return velocities(latents, *rest)

    monkeypatch.setattr(short._transformer, "velocities", refuse_both)
    for one, other in zip(alone, run(short, rows), strict=True):
        assert torch.allclose(tensor(one, "latents"), tensor(other, "latents"), rtol=0, atol=1e-5)
    assert together == [4, 2, 2, 2, 2]


def test_a_picture_without_guidance_is_not_tried_twice_where_memory_lacks(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, tries = load(checkpoint), list[int]()
    short.joint = MemoryLimit(1 << 20)

    def refuse(latents: torch.Tensor, *rest: Any) -> torch.Tensor:
        tries.append(len(latents))
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(short._transformer, "velocities", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        run(short, [prompt(guidance=1.0)])
    assert (tries, short.joint.units) == ([1], 1 << 20)


def test_a_step_that_raises_moves_no_row(model: Denoise) -> None:
    with torch.inference_mode():
        rows = [model.begin(prompt(seed=seed)) for seed in (1, 2)]
        before = [row.latents.clone() for row in rows]

        def break_down(module: torch.nn.Module, args: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        hook = model._transformer._model.transformer_blocks[1].register_forward_pre_hook(break_down)
        with pytest.raises(torch.OutOfMemoryError):
            model.step(rows)
        hook.remove()
    for row, latents in zip(rows, before, strict=True):
        assert row.steps_done == 0
        assert torch.equal(row.latents, latents)


# Saved rows


@torch.inference_mode()
def after(model: Denoise, given: DiffusionPrompt, steps: int) -> Any:
    row = model.begin(given)
    for _ in range(steps):
        model.step([row])
    return row


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
def test_a_row_goes_on_from_where_it_was_saved_to_the_same_bits(checkpoint: Path, model: Denoise, steps: int) -> None:
    assert isinstance(model, ResumableModel)
    row = after(model, prompt(), steps)
    saved = model.save(row)
    values = json.loads(json.dumps(saved.values))
    other = load(checkpoint)  # another process has its own
    with torch.inference_mode():
        for _ in range(4 - steps):
            model.step([row])
        resumed = other.resume(prompt(), saved.tensors, values)
        assert resumed.steps_done == steps
        for _ in range(4 - steps):
            other.step([resumed])
    assert torch.equal(resumed.latents, row.latents)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (prompt(seed=4), "values.seed"),
        (prompt(steps=5), "values.parameters"),
        (prompt(guidance=2.0), "values.parameters"),
        (prompt(width=64), "values.size"),
    ],
)
def test_another_job_does_not_take_a_saved_row(model: Denoise, other: DiffusionPrompt, field: str) -> None:
    saved = model.save(after(model, prompt(), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(other, saved.tensors, saved.values)
    assert refused.value.field == field


LATENTS = torch.zeros(16, 8, 12)


@pytest.mark.parametrize(
    ("tensors", "values", "field"),
    [
        ({}, {}, "tensors.latents"),
        ({"latents": LATENTS[:15]}, {}, "tensors.latents"),
        ({"latents": LATENTS.bfloat16()}, {}, "tensors.latents"),
        ({"latents": LATENTS + torch.nan}, {}, "tensors.latents"),
        ({"latents": LATENTS}, {"steps_done": 5}, "values.steps_done"),
        ({"latents": LATENTS}, {"saved_by": "another"}, "values.saved_by"),
        ({"latents": LATENTS}, {"model": "another"}, "values.model"),
        ({"latents": LATENTS}, {"dtype": "torch.bfloat16"}, "values.dtype"),
    ],
)
def test_a_saved_row_that_is_wrong_is_refused_with_its_field(
    model: Denoise, tensors: dict[str, Any], values: dict[str, Any], field: str
) -> None:
    saved = model.save(after(model, prompt(), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(prompt(), tensors, {**saved.values, **values})
    assert refused.value.field == field


def test_checkpoints_are_told_apart(model: Denoise, tiny_glm_images: TinyCheckpoints) -> None:
    saved = model.save(after(model, prompt(), 1))
    with pytest.raises(ModelError) as refused:
        load(tiny_glm_images(1)).resume(prompt(), saved.tensors, saved.values)
    assert refused.value.field == "values.model"


# Previews


def test_a_preview_is_near_to_the_picture(model: Denoise, vae: PictureDecoder) -> None:
    """Of latents that hold their colour; those of a random model do not, so the map is tested apart."""
    assert isinstance(model, PreviewingModel)
    row = after(model, prompt(), 2)
    shown = model.preview(row)
    assert (shown.shape, shown.dtype) == ((8, 12, 3), torch.uint8)
    assert model._colours is not None
    field = torch.randn(16, 4, 4, generator=torch.Generator().manual_seed(1))
    latents = field.repeat_interleave(8, 1).repeat_interleave(8, 2)
    (decoded,) = run(vae, [DiffusionPrompt({"latents": latents}, {}, StageParameters(), 0)])
    small = functional.avg_pool2d(tensor(decoded, "pixels").permute(2, 0, 1).float(), 8)
    near = model._colours.picture(latents).permute(2, 0, 1).float()
    grey = small.mean(dim=(1, 2), keepdim=True)
    # A random decoder is far from linear; without the map nothing would be explained.
    assert (small - near).square().mean() < 0.7 * (small - grey).square().mean()


def test_the_vae_is_loaded_for_the_first_preview_alone(checkpoint: Path, tmp_path: Path) -> None:
    for part in ("transformer", "scheduler", "text_encoder", "tokenizer"):
        shutil.copytree(checkpoint / part, tmp_path / part)
    fresh = load(tmp_path)
    row = after(fresh, prompt(), 1)
    with pytest.raises(ConfigError):
        fresh.preview(row)
    shutil.copytree(checkpoint / "vae", tmp_path / "vae")
    first = fresh.preview(row)
    shutil.rmtree(tmp_path / "vae")
    assert torch.equal(fresh.preview(row), first)


# Bad input


@pytest.mark.parametrize(
    ("tensors", "values", "field"),
    [
        ({"token_ids": None}, {}, "token_ids"),
        ({"token_ids": torch.zeros(6)}, {}, "token_ids"),
        ({"token_ids": torch.zeros(5, dtype=torch.int64)}, {}, "token_ids"),
        ({"token_ids": torch.full((6,), 16_384)}, {}, "token_ids"),
        ({"token_ids": torch.full((6,), -1)}, {}, "token_ids"),
        ({}, {"height": None}, "height"),
        ({}, {"height": 65}, "height"),
        ({}, {"height": 32}, "height"),
        ({}, {"width": 4096}, "width"),
        ({}, {"width": True}, "width"),
        ({}, {"glyph_texts": "Open"}, "glyph_texts"),
        ({}, {"glyph_texts": [1]}, "glyph_texts"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_with_its_field(
    model: Denoise, tensors: dict[str, Any], values: dict[str, Any], field: str
) -> None:
    given = prompt()
    wrong = replace(given, tensors={**given.tensors, **tensors}, values={**given.values, **values})
    with pytest.raises(ModelError) as refused:
        model.check(wrong)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "latents",
    [None, [LATENTS], LATENTS.long(), LATENTS[0], LATENTS[:15], LATENTS[:, :7], LATENTS[:, :4], LATENTS + torch.inf],
)
def test_latents_that_the_vae_cannot_decode_are_refused(vae: PictureDecoder, latents: Any) -> None:
    with pytest.raises(ModelError) as refused:
        vae.check(DiffusionPrompt({"latents": latents}, {}, StageParameters(), 0))
    assert str(refused.value.field).partition(".")[0] == "latents"


def test_in_bfloat16_it_is_near_to_float32(model: Denoise, checkpoint: Path) -> None:
    rounded = load(checkpoint, "bfloat16")
    rows: Sequence[DiffusionPrompt] = [prompt(seed=seed) for seed in range(3)]
    for exact, near in zip(run(model, rows), run(rounded, rows), strict=True):
        assert tensor(near, "latents").dtype == torch.float32
        difference = tensor(exact, "latents") - tensor(near, "latents")
        assert 0 < difference.square().mean().sqrt() < 0.1 * tensor(exact, "latents").std()


# Checkpoints


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("transformer/config.json", {"_class_name": "FluxTransformer2DModel"}, "not a GlmImageTransformer2DModel"),
        ("transformer/config.json", {"num_layers": 3}, "missing keys"),
        ("transformer/config.json", {"patch_size": 4}, "cannot be loaded"),
        ("scheduler/scheduler_config.json", {"_class_name": "UniPCMultistepScheduler"}, "UniPC"),
        ("scheduler/scheduler_config.json", {"stochastic_sampling": True}, "not supported"),
        ("text_encoder/config.json", {"num_layers": 3}, "missing keys"),
        ("text_encoder/config.json", {"d_model": 16}, "text_encoder"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    for part in ("transformer", "scheduler", "text_encoder", "tokenizer"):
        shutil.copytree(checkpoint / part, tmp_path / part)
    config = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**config, **changes}))
    with pytest.raises(ConfigError, match=message) as refused:
        load(tmp_path)
    assert refused.value.file is not None
