"""Qwen-Image-Edit's denoising equals Diffusers' pipeline alone, and in company itself alone."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.qwen_image_edits import edit_prompt, picture
from tests.integration.runners.qwen_image_prompts import embeds, prompt, run
from tests.oracles.qwen_image_edit import QwenImageEditReference
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser, load_editor
from workers.models.qwen_image.latents import pack
from workers.models.qwen_image.source_encoder import SourceEncoder, load_source_encoder
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")
Checkpoints = Callable[[int], Path]


def load(checkpoint: Path) -> Denoiser:
    return load_editor(OmniModelConfig(checkpoint, "qwen_image_edit", "denoise"), CPU, None)


def load_vae(checkpoint: Path) -> SourceEncoder:
    return load_source_encoder(OmniModelConfig(checkpoint, "qwen_image_edit", "sources"), CPU, None)


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_image_edits: Checkpoints) -> Path:
    return tiny_qwen_image_edits(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Denoiser:
    return load(checkpoint)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> SourceEncoder:
    return load_vae(checkpoint)


def latents(output: Any) -> torch.Tensor:
    return pack(output.tensors["latents"])


ONE, TWO = [picture(80, 60)], [picture(100, 40, 1), picture(48, 90, 2)]


@pytest.mark.parametrize(("seed", "zero_cond_t"), [(0, True), (1, False)])
def test_an_edit_alone_has_the_bits_of_the_reference(
    seed: int, zero_cond_t: bool, tiny_qwen_image_edits: Checkpoints, tmp_path: Path
) -> None:
    """With ``zero_cond_t``, as of 2511, and without, as of 2509."""
    checkpoint = tiny_qwen_image_edits(seed)
    if not zero_cond_t:
        checkpoint = edited(checkpoint, tmp_path / "older", "transformer/config.json", zero_cond_t=False)
    reference, ours, encoder = QwenImageEditReference(checkpoint), load(checkpoint), load_vae(checkpoint)
    cases: list[tuple[Any, int, int, int, float, int, int | None]] = [
        # pictures, height, width, steps, scale, tokens, negative tokens
        (ONE, 48, 64, 3, 4.0, 9, 5),
        (TWO, 48, 64, 2, 4.0, 40, 40),
        (ONE, 160, 80, 2, 1.0, 600, 5),
        (TWO, 160, 80, 2, 2.0, 12, None),
    ]
    for pictures, height, width, steps, scale, tokens, negative in cases:
        size = {"height": height, "width": width}
        given = edit_prompt(
            encoder, pictures, tokens, negative, seed=seed + 7, steps=steps, true_cfg_scale=scale, **size
        )
        expected = reference.edit(
            given.tensors["prompt_embeds"],  # type: ignore[arg-type]
            given.tensors.get("negative_prompt_embeds"),  # type: ignore[arg-type]
            pictures,
            pixels=64 * 64,
            steps=steps,
            scale=scale,
            seed=seed + 7,
            **size,
        )
        (output,) = run(ours, [given])
        assert torch.equal(latents(output), expected)


def test_an_edit_of_one_picture_has_the_bits_of_its_own_reference(checkpoint: Path, tmp_path: Path) -> None:
    """That of checkpoints of QwenImageEditPipeline."""
    single = edited(checkpoint, tmp_path / "single", "model_index.json", _class_name="QwenImageEditPipeline")
    reference = QwenImageEditReference(single)
    given = edit_prompt(load_vae(single), ONE, 9, 5, seed=2, steps=2)
    texts: Any = given.tensors
    expected = reference.edit(
        texts["prompt_embeds"],
        texts["negative_prompt_embeds"],
        ONE,
        pixels=64 * 64,
        steps=2,
        scale=4.0,
        seed=2,
        height=48,
        width=64,
    )
    assert type(reference.pipeline).__name__ == "QwenImageEditPipeline"
    assert torch.equal(latents(run(load(single), [given])[0]), expected)


def test_rows_in_company_are_as_alone(model: Denoiser, encoder: SourceEncoder) -> None:
    rows = [
        edit_prompt(encoder, TWO, 9, 5, seed=1, steps=4),
        edit_prompt(encoder, TWO[::-1], 12, None, seed=2, steps=2),
        edit_prompt(encoder, TWO, 30, 3, seed=3, steps=3, true_cfg_scale=2.0),
        edit_prompt(encoder, ONE, 9, 5, seed=4, steps=4),
    ]
    groups = [model.check(each).group for each in rows]
    assert len(set(groups)) == 3
    assert groups[0] == groups[2]
    alone = [run(model, [each])[0] for each in rows]
    for joint in (0, 10_000):
        model.joint.units = joint
        try:
            together = run(model, rows, late=[0, 1, 1, 2])
        finally:
            model.joint.units = 0
        for one, other in zip(alone, together, strict=True):
            assert torch.allclose(latents(one), latents(other), rtol=0, atol=1e-5)


def test_what_is_edited_decides_the_result(model: Denoiser, encoder: SourceEncoder) -> None:
    one, other = ([picture(80, 60, seed)] for seed in (0, 3))
    results = [latents(run(model, [edit_prompt(encoder, each, 9, 5)])[0]) for each in (one, other)]
    assert (results[0] - results[1]).abs().max() > 1e-3


def test_the_cost_counts_the_tokens_of_sources(model: Denoiser, encoder: SourceEncoder) -> None:
    cost = model.check(edit_prompt(encoder, ONE, steps=9, pixels=64 * 64))  # 64 x 64 pixels once scaled
    assert (cost.units, cost.steps) == (2 * (12 + 16), 9)
    assert model.check(edit_prompt(encoder, ONE, true_cfg_scale=1.0)).units == 12 + 16


@pytest.mark.parametrize("steps", [0, 2])
def test_a_row_goes_on_from_its_snapshot_to_the_same_bits(
    checkpoint: Path, model: Denoiser, encoder: SourceEncoder, steps: int
) -> None:
    """A snapshot holds the target's latents alone: the sources come of the payload again."""
    given = edit_prompt(encoder, TWO, steps=3)
    with torch.inference_mode():
        row = model.begin(given)
        for _ in range(steps):
            model.step([row])
        saved = model.save(row)
        assert {name: tuple(each.shape) for name, each in saved.tensors.items()} == {"latents": (12, 64)}  # type: ignore[union-attr]
        resumed = load(checkpoint).resume(given, saved.tensors, json.loads(json.dumps(saved.values)))
        for each in (row, resumed):
            while each.steps_done < 3:
                model.step([each])
    assert torch.equal(row.latents, resumed.latents)
    others = [
        edit_prompt(encoder, pictures, steps=3, pixels=pixels)
        for pictures, pixels in ((TWO, 96 * 96), (TWO[::-1], 64 * 64))
    ]
    for other in others:
        with pytest.raises(ModelError) as refused:
            model.resume(other, saved.tensors, saved.values)
        assert refused.value.field == "values.source_sizes"


# Bad input


@pytest.mark.parametrize(
    ("tensors", "values", "field"),
    [
        ({"source_tokens": None}, {}, "source_tokens"),
        ({"source_tokens": torch.zeros(15, 64)}, {}, "source_tokens.shape"),
        ({"source_tokens": torch.zeros(16, 32)}, {}, "source_tokens.shape"),
        ({"source_tokens": torch.zeros(16, 64, dtype=torch.int64)}, {}, "source_tokens.dtype"),
        ({"source_tokens": torch.full((16, 64), torch.nan)}, {}, "source_tokens"),
        ({}, {"source_sizes": None}, "source_sizes"),
        ({}, {"source_sizes": []}, "source_sizes"),
        ({}, {"source_sizes": [[64, 64]] * 4}, "source_sizes"),
        ({}, {"source_sizes": [[64]]}, "source_sizes.0"),
        ({}, {"source_sizes": [[64, 65]]}, "source_sizes.0"),
        ({}, {"source_sizes": [[64, 64.0]]}, "source_sizes.0"),
        ({}, {"source_sizes": [[0, 64]]}, "source_sizes.0"),
        ({}, {"source_sizes": [[64, 10**6 * 16]]}, "source_sizes.0"),
        ({"prompt_embeds": torch.zeros(2049, 128)}, {}, "prompt_embeds.shape"),
    ],
)
def test_sources_that_do_not_fit_are_refused_with_their_field(
    model: Denoiser, encoder: SourceEncoder, tensors: dict[str, Any], values: dict[str, Any], field: str
) -> None:
    given = edit_prompt(encoder, ONE)
    with pytest.raises(ModelError) as refused:
        model.check(replace(given, tensors={**given.tensors, **tensors}, values={**given.values, **values}))
    assert refused.value.field == field


def test_a_model_that_draws_edits_nothing_and_one_that_edits_does_not_draw(
    tiny_qwen_images: Checkpoints, model: Denoiser, encoder: SourceEncoder
) -> None:
    draws = load_denoiser(OmniModelConfig(tiny_qwen_images(0), "qwen_image", "denoise"), CPU, None)
    for denoiser, given in ((draws, edit_prompt(encoder, ONE)), (model, prompt())):
        with pytest.raises(ModelError) as refused:
            denoiser.check(given)
        assert refused.value.field in ("source_tokens", "source_sizes")


PIXELS = torch.zeros(32, 64, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("pictures", "field"),
    [
        (None, "pictures"),
        ([], "pictures"),
        (PIXELS, "pictures"),
        ([PIXELS, PIXELS.float()], "pictures.1"),
        ([PIXELS[..., :1]], "pictures.0"),
        ([PIXELS[0]], "pictures.0"),
        ([PIXELS[:30]], "pictures.0.shape"),
        ([PIXELS[:0]], "pictures.0.shape"),
    ],
)
def test_pictures_that_the_vae_cannot_take(encoder: SourceEncoder, pictures: Any, field: str) -> None:
    with pytest.raises(ModelError) as refused:
        encoder.check(DiffusionPrompt({"pictures": pictures}, {}, StageParameters(), 0))
    assert refused.value.field == field


def test_pictures_of_several_jobs_are_encoded_in_turn(encoder: SourceEncoder) -> None:
    prompts = [
        DiffusionPrompt({"pictures": [PIXELS, PIXELS[:, :32]]}, {"kept": 1}, StageParameters(), 0),
        DiffusionPrompt({"pictures": [PIXELS + 100]}, {}, StageParameters(), 0),
    ]
    assert [encoder.check(each).steps for each in prompts] == [2, 1]
    alone = [run(encoder, [each])[0] for each in prompts]
    for one, other in zip(alone, run(encoder, prompts, late=[0, 1]), strict=True):
        assert torch.equal(one.tensors["source_tokens"], other.tensors["source_tokens"])  # type: ignore[arg-type]
        assert one.values == other.values
    assert alone[0].values == {"kept": 1, "source_sizes": [[32, 64], [32, 32]]}
    assert alone[0].tensors["source_tokens"].shape == (2 * 4 + 2 * 2, 64)  # type: ignore[union-attr]


# Checkpoints


def edited(checkpoint: Path, to: Path, file: str, **changes: Any) -> Path:
    shutil.copytree(checkpoint, to)
    config = json.loads((to / file).read_text())
    (to / file).write_text(json.dumps({**config, **changes}))
    return to


def test_a_checkpoint_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another model"):
        load(edited(checkpoint, tmp_path / "edited", "transformer/config.json", use_layer3d_rope=True))
    with pytest.raises(ConfigError, match="another model") as refused:
        load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, None)
    assert refused.value.to_dict()["field"] == "zero_cond_t"


def test_embeddings_of_pictures_and_text_are_taken_up_to_their_limit(model: Denoiser, encoder: SourceEncoder) -> None:
    model.check(edit_prompt(encoder, ONE, embeds(2048, 0), 5))
