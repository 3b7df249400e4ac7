"""Edits by GLM-Image: source pictures are encoded as the references do, and edits are Diffusers' bit for bit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.test_glm_image_pictures import after, load, prompt, tensor
from tests.oracles.glm_image import GlmImageReference
from tests.services.checkpoint import TinyCheckpoints
from tests.source_pictures import drawn, pixels, source_of
from workers.models.glm_image.denoise import Denoise
from workers.models.glm_image.encode import Encode, load_encode
from workers.models.glm_image.sources import Source
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")


def load_encoder(checkpoint: Path, dtype: str | None = None) -> Encode:
    return load_encode(OmniModelConfig(checkpoint, "glm_image", "encode"), CPU, dtype)


def pictures_prompt(*pictures: Any) -> DiffusionPrompt:
    return DiffusionPrompt({"pixels": list(pictures)}, {}, StageParameters(), 0)


def edit(*sources: Source, **options: Any) -> DiffusionPrompt:
    plain = prompt(**options)
    lists = {
        "source_ids": [source.token_ids for source in sources],
        "source_latents": [source.latents for source in sources],
    }
    return replace(plain, tensors={**plain.tensors, **lists})


@pytest.fixture(scope="module")
def checkpoint(tiny_glm_images: TinyCheckpoints) -> Path:
    return tiny_glm_images(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Denoise:
    return load(checkpoint)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> Encode:
    return load_encoder(checkpoint)


# As the references


@pytest.mark.parametrize("checkpoint_seed", [0, 1])
def test_edits_alone_are_those_of_the_reference(checkpoint_seed: int, tiny_glm_images: TinyCheckpoints) -> None:
    """From pictures on: those that fit, one to be brought to multiples of 32, and one to be enlarged."""
    checkpoint = tiny_glm_images(checkpoint_seed)
    reference, encoder, model = GlmImageReference(checkpoint), load_encoder(checkpoint), load(checkpoint)
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([drawn(64, 96, 1)], {"steps": 3}),
        ([drawn(128, 64, 2), drawn(83, 150, 3)], {"height": 96, "width": 64, "guidance": 4.0, "seed": 5}),
        ([drawn(40, 30, 4), drawn(64, 64, 5)], {"guidance": 1.0, "steps": 2}),
    ]
    for pictures, options in cases:
        (output,) = run(encoder, [pictures_prompt(*map(pixels, pictures))])
        ids = reference.source_ids(pictures)
        assert tensor(output, "grids").tolist() == [list(each.shape) for each in ids]
        assert torch.equal(tensor(output, "token_ids"), torch.cat([each.flatten() for each in ids]))
        latents = tensor(output, "latents").split([16 * each.numel() for each in ids], dim=1)
        sources = [
            Source(each, encoded.reshape(16, 4 * each.shape[0], 4 * each.shape[1]))
            for each, encoded in zip(ids, latents, strict=True)
        ]
        given = edit(*sources, **options)
        (edited,) = run(model, [given])
        assert isinstance(given.tensors["token_ids"], torch.Tensor)
        expected = reference.latents(
            "A sign \"Open\" above 'Café 24'",
            given.tensors["token_ids"],
            given.values["height"],
            given.values["width"],
            seed=given.seed,
            pictures=pictures,
            num_inference_steps=options.get("steps", 4),
            guidance_scale=options.get("guidance", 1.5),
        )
        assert torch.equal(tensor(edited, "latents"), expected)
        plain = replace(given, tensors={"token_ids": given.tensors["token_ids"]})
        assert (tensor(run(model, [plain])[0], "latents") - expected).abs().max() > 0.01


# In company

ONE = source_of(torch.randint(0, 16_384, (2, 3), generator=torch.Generator().manual_seed(1)), 1)
OTHER = source_of(torch.randint(0, 16_384, (4, 5), generator=torch.Generator().manual_seed(2)), 2)


def test_edits_and_plain_pictures_in_company_are_as_alone(model: Denoise) -> None:
    rows = [
        edit(ONE, seed=1),
        edit(OTHER, ONE, seed=2, steps=3, guidance=3.0),
        prompt("x", seed=3),
        edit(ONE, text="'yes'", seed=4, guidance=1.0),
    ]
    alone = [run(model, [row])[0] for row in rows]
    for one, other in zip(alone, run(model, rows, [0, 1, 0, 2]), strict=True):
        assert torch.allclose(tensor(one, "latents"), tensor(other, "latents"), rtol=0, atol=1e-5)


def test_the_order_of_source_pictures_does_not_matter_to_the_transformer(model: Denoise) -> None:
    """It puts no picture before another; the language model does."""
    one, other = run(model, [edit(ONE, OTHER)])[0], run(model, [edit(OTHER, ONE)])[0]
    assert torch.allclose(tensor(one, "latents"), tensor(other, "latents"), rtol=0, atol=1e-5)


def test_source_patches_cost_and_long_ones_do_not_pad_short_ones(
    model: Denoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, with_source = model.check(prompt("x")), model.check(edit(ONE, text="x"))
    assert (with_source.units - plain.units, with_source.group) == (24, plain.group)
    large = source_of(torch.zeros(6, 6, dtype=torch.int64))
    with torch.inference_mode():
        rows = [model.begin(each) for each in (edit(ONE), edit(ONE, seed=1), edit(large, seed=2), prompt("x", seed=3))]
        seen: list[int] = []
        monkeypatch.setattr(model, "joint", MemoryLimit(1 << 20))  # as on a GPU: both halves of guidance at once
        block = model._transformer._model.transformer_blocks[0]
        hook = block.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
        model.step(rows)
        hook.remove()
    assert sorted(seen) == [1, 2, 5]  # with the large picture, with the small one, and all that have none


def test_a_snapshot_holds_latents_alone_and_goes_on_to_the_same_bits(checkpoint: Path, model: Denoise) -> None:
    given = edit(ONE, OTHER)
    saved = model.save(after(model, given, 2))
    assert list(saved.tensors) == ["latents"]
    with torch.inference_mode():
        resumed = load(checkpoint).resume(given, saved.tensors, saved.values)
        for _ in range(2):
            model.step([resumed])
    assert torch.equal(resumed.latents, tensor(run(model, [given])[0], "latents"))


# Encoding


def test_a_job_without_pictures_has_none(encoder: Encode) -> None:
    cost = encoder.check(pictures_prompt())
    with_pictures = encoder.check(pictures_prompt(*[pixels(drawn(64, 64))] * 3))
    assert (cost.steps, with_pictures.steps, cost.group) == (1, 3, with_pictures.group)
    (output,) = run(encoder, [pictures_prompt()])
    assert [list(tensor(output, name).shape) for name in ("grids", "token_ids", "latents")] == [[0, 2], [0], [16, 0]]


def test_jobs_of_several_pictures_take_turns(encoder: Encode) -> None:
    given = [pictures_prompt(*(pixels(drawn(64, 32 * (2 + n), n)) for n in range(count))) for count in (3, 0, 1)]
    alone = [run(encoder, [each])[0] for each in given]
    for one, other in zip(alone, run(encoder, given), strict=True):
        for name in ("grids", "token_ids", "latents"):
            assert torch.equal(tensor(one, name), tensor(other, name))


def test_in_bfloat16_the_vae_stays_in_float32(checkpoint: Path, encoder: Encode) -> None:
    given = pictures_prompt(pixels(drawn(128, 128)))
    (exact,), (rounded,) = run(encoder, [given]), run(load_encoder(checkpoint, "bfloat16"), [given])
    assert torch.equal(tensor(exact, "latents"), tensor(rounded, "latents"))
    same = (tensor(exact, "token_ids") == tensor(rounded, "token_ids")).float().mean()
    assert same > 0.3  # of 16,384 random codes another is often as near


# Bad input


@pytest.mark.parametrize(
    "wrong",
    [
        pixels(drawn(64, 64)).float(),
        pixels(drawn(64, 64))[:, :, 0],
        pixels(drawn(64, 64)).repeat(1, 1, 2),
        pixels(drawn(1, 1)),
        pixels(drawn(32, 160)),
    ],
)
def test_a_picture_that_is_none_is_refused(encoder: Encode, wrong: torch.Tensor) -> None:
    with pytest.raises(ModelError) as refused:
        encoder.check(pictures_prompt(wrong))
    assert refused.value.field == "pixels"
    with pytest.raises(ModelError):
        encoder.check(replace(pictures_prompt(), tensors={"pixels": wrong}))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source_ids": [ONE.token_ids]}, "source_ids"),
        ({"source_ids": torch.zeros(2, 2)}, "source_ids"),
        ({"source_ids": [ONE.token_ids.float(), OTHER.token_ids]}, "source_ids"),
        ({"source_ids": [ONE.token_ids.flatten(), OTHER.token_ids]}, "source_ids"),
        ({"source_ids": [ONE.token_ids[:0], OTHER.token_ids]}, "source_ids"),
        ({"source_ids": [ONE.token_ids + 16_384, OTHER.token_ids]}, "source_ids"),
        ({"source_latents": [ONE.latents[:15], OTHER.latents]}, "source_latents"),
        ({"source_latents": [ONE.latents[:, :4], OTHER.latents]}, "source_latents"),
        ({"source_latents": [ONE.latents + torch.nan, OTHER.latents]}, "source_latents"),
        ({"source_latents": [ONE.latents.long(), OTHER.latents]}, "source_latents"),
    ],
)
def test_sources_that_do_not_fit_are_refused_with_their_field(
    model: Denoise, changes: dict[str, Any], field: str
) -> None:
    given = edit(ONE, OTHER)
    with pytest.raises(ModelError) as refused:
        model.check(replace(given, tensors={**given.tensors, **changes}))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("file", "section", "changes", "message"),
    [
        ("vision_language_encoder/config.json", "vision_config", {"depth": 2}, "do not fit"),
        ("vision_language_encoder/config.json", "vq_config", {"embed_dim": 4}, "do not fit"),
        ("vision_language_encoder/config.json", "vision_config", {"depth": "two"}, "cannot be prepared"),
        ("processor/processor_config.json", "image_processor", {"patch_size": 14}, "patches of 16 pixels"),
        ("vae/config.json", None, {"latents_mean": None}, "each latent channel"),
        ("vision_language_encoder/model.safetensors", None, None, "cannot be read"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path, file: str, section: str | None, changes: dict[str, Any] | None, message: str
) -> None:
    for part in ("processor", "vision_language_encoder", "vae"):
        shutil.copytree(checkpoint / part, tmp_path / part)
    if changes is None:
        (tmp_path / file).unlink()
    else:
        config = json.loads((tmp_path / file).read_text())
        (config if section is None else config[section]).update(changes)
        (tmp_path / file).write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message) as refused:
        load_encoder(tmp_path)
    assert refused.value.file is not None
