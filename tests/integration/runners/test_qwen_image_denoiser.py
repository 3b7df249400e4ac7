"""Qwen-Image's denoising equals Diffusers' pipeline alone, and in company itself alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, ModelError
from tests.integration.runners.qwen_image_prompts import WIDTH, embeds, prompt, run
from tests.oracles.qwen_image import QwenImageReference
from workers.models.pictures.colours import fit_colours
from workers.models.qwen_image.denoiser import Denoiser, load_denoiser
from workers.models.qwen_image.latents import noise as latent_noise
from workers.models.qwen_image.latents import pack, unpack
from workers.models.qwen_image.size import Size
from workers.models.qwen_image.vae import QwenImageVae, load_vae
from workers.runners.diffusion.model import PreviewingModel, ResumableModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")


def load(checkpoint: Path, dtype: str | None = None) -> Denoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "qwen_image", "denoise"), CPU, dtype)


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Denoiser:
    return load(checkpoint)


def latents(output: Any) -> torch.Tensor:
    return pack(output.tensors["latents"])


@pytest.mark.parametrize("checkpoint_seed", [0, 1, 2])
def test_a_row_alone_has_the_bits_of_the_reference(
    checkpoint_seed: int, tiny_qwen_images: Callable[[int], Path]
) -> None:
    reference = QwenImageReference(tiny_qwen_images(checkpoint_seed))
    ours = load(tiny_qwen_images(checkpoint_seed))
    cases: list[tuple[int, int, int, float, int, int | None, int]] = [
        # height, width, steps, scale, tokens, negative tokens, seed
        (16, 16, 3, 4.0, 6, 6, 0),
        (64, 48, 5, 4.0, 40, 5, 2**63 - 1),
        (32, 256, 4, 1.0, 9, 5, 7),
        (128, 128, 2, 7.5, 600, 5, 8),
        (256, 160, 2, 2.0, 12, None, 9),
    ]
    for height, width, steps, scale, tokens, negative, seed in cases:
        given = prompt(tokens, negative, seed=seed % 100, height=height, width=width, steps=steps, true_cfg_scale=scale)
        given = replace(given, seed=seed)
        expected = reference.latents(
            given.tensors["prompt_embeds"],  # type: ignore[arg-type]
            given.tensors.get("negative_prompt_embeds"),  # type: ignore[arg-type]
            height=height,
            width=width,
            steps=steps,
            scale=scale,
            seed=seed,
        )
        (output,) = run(ours, [given])
        assert torch.equal(latents(output), expected)


def test_a_single_step_goes_from_noise_to_the_end(model: Denoiser) -> None:
    with torch.inference_mode():
        row = model.begin(prompt(steps=1))
        noise = row.latents
        model.step([row])
    assert row.schedule.sigmas.tolist() == [1.0, 0.0]
    assert row.velocity is not None
    assert torch.equal(row.latents, noise - row.velocity)


ROWS = st.builds(
    prompt,
    st.integers(1, 40),
    st.sampled_from([None, 1, 5, 23]),
    seed=st.integers(0, 50),
    steps=st.integers(1, 6),
    true_cfg_scale=st.sampled_from([1.0, 1.5, 4.0]),
    height=st.sampled_from([32, 48]),
    width=st.sampled_from([32, 64]),
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, min_size=12, max_size=12),
    late=st.lists(st.integers(0, 8), min_size=12, max_size=12),
    joint_tokens=st.sampled_from([0, 30, 10_000]),
)
def test_rows_in_company_are_as_alone(
    model: Denoiser, rows: list[DiffusionPrompt], late: list[int], joint_tokens: int
) -> None:
    alone = [run(model, [row])[0] for row in rows]
    model.joint.units = joint_tokens
    try:
        together = run(model, rows, late)
    finally:
        model.joint.units = 0
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(latents(one), latents(other), rtol=0, atol=1e-5)


def test_pictures_of_other_sizes_are_of_other_groups(model: Denoiser) -> None:
    groups = [model.check(prompt(height=h, width=w)).group for h, w in [(32, 64), (64, 32), (32, 64)]]
    assert groups[0] == groups[2] != groups[1]


@pytest.mark.parametrize(("scale", "negative", "units"), [(4.0, 5, 24), (1.0, 5, 12), (4.0, None, 12)])
def test_the_cost_is_the_tokens_of_a_step(model: Denoiser, scale: float, negative: int | None, units: int) -> None:
    cost = model.check(prompt(7, negative, steps=9, true_cfg_scale=scale))
    assert (cost.units, cost.steps) == (units, 9)


def test_where_memory_does_not_let_both_halves_be_together_they_run_in_turn(checkpoint: Path) -> None:
    model = load(checkpoint)
    model.joint = MemoryLimit(1000)
    sizes: list[int] = []
    room = [1]

    def refuse_large(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        sizes.append(len(kwargs["hidden_states"]))
        if len(kwargs["hidden_states"]) > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model._transformer.register_forward_pre_hook(refuse_large, with_kwargs=True)
    (output,) = run(model, [prompt(steps=2)])
    assert sizes == [2, 1, 1, 1, 1]  # together once, then in turn without another try
    room[0] = 2
    while sizes[-1] == 1 and len(sizes) < 1000:
        run(model, [prompt(steps=50)])
    hook.remove()
    assert sizes[-1] == 2  # memory may be there again after some steps
    assert torch.equal(latents(output), latents(run(load(checkpoint), [prompt(steps=2)])[0]))


def test_a_step_that_raises_moves_no_row(model: Denoiser) -> None:
    with torch.inference_mode():
        rows = [model.begin(prompt(seed=seed)) for seed in (1, 2)]
        before = [row.latents.clone() for row in rows]

        def break_down(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        hook = model._transformer.register_forward_pre_hook(break_down, with_kwargs=True)
        with pytest.raises(torch.OutOfMemoryError):
            model.step(rows)
        hook.remove()
    for row, latents_before in zip(rows, before, strict=True):
        assert row.steps_done == 0
        assert torch.equal(row.latents, latents_before)


# Snapshots


@torch.inference_mode()
def after(model: Denoiser, given: DiffusionPrompt, steps: int) -> Any:
    row = model.begin(given)
    for _ in range(steps):
        model.step([row])
    return row


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
def test_a_row_goes_on_from_its_snapshot_to_the_same_bits(checkpoint: Path, model: Denoiser, steps: int) -> None:
    given = prompt(seed=3)
    row = after(model, given, steps)
    saved = model.save(row)
    kept = saved.tensors["latents"].clone()  # type: ignore[union-attr]
    other = load(checkpoint)  # another process has its own
    with torch.inference_mode():
        resumed = other.resume(given, saved.tensors, saved.values)
        assert resumed.steps_done == steps
        while resumed.steps_done < 4:
            other.step([resumed])
        for _ in range(4 - steps):
            model.step([row])
    assert torch.equal(resumed.latents, row.latents)
    assert torch.equal(saved.tensors["latents"], kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 4}, "seed"),
        ({"steps": 5}, "steps"),
        ({"height": 64}, "height"),
        ({"width": 48}, "width"),
        ({"true_cfg_scale": 2.0}, "true_cfg_scale"),
        ({"true_cfg_scale": 1.0}, "true_cfg_scale"),
        ({"negative": None}, "true_cfg_scale"),
    ],
)
def test_another_job_does_not_take_a_snapshot(model: Denoiser, changes: dict[str, Any], field: str) -> None:
    saved = model.save(after(model, prompt(seed=3), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(prompt(**{"seed": 3} | changes), saved.tensors, saved.values)
    assert refused.value.field == f"values.{field}"


LATENTS = torch.zeros(12, 64)


@pytest.mark.parametrize(
    ("tensors", "values", "field"),
    [
        ({}, {}, "tensors.latents"),
        ({"latents": [LATENTS]}, {}, "tensors.latents"),
        ({"latents": LATENTS[:11]}, {}, "tensors.latents"),
        ({"latents": LATENTS[None]}, {}, "tensors.latents"),
        ({"latents": LATENTS.bfloat16()}, {}, "tensors.latents"),
        ({"latents": LATENTS.long()}, {}, "tensors.latents"),
        ({"latents": LATENTS + torch.nan}, {}, "tensors.latents"),
        ({"latents": LATENTS}, {"steps_done": 5}, "values.steps_done"),
        ({"latents": LATENTS}, {"steps_done": -1}, "values.steps_done"),
        ({"latents": LATENTS}, {"steps_done": True}, "values.steps_done"),
        ({"latents": LATENTS}, {"steps_done": None}, "values.steps_done"),
        ({"latents": LATENTS}, {"version": 2}, "values.version"),
        ({"latents": LATENTS}, {"model": "another"}, "values.model"),
        ({"latents": LATENTS}, {"dtype": "bfloat16"}, "values.dtype"),
    ],
)
def test_a_snapshot_that_is_wrong_is_refused_with_its_field(
    model: Denoiser, tensors: dict[str, Any], values: dict[str, Any], field: str
) -> None:
    saved = model.save(after(model, prompt(seed=3), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(prompt(seed=3), tensors, {**saved.values, **values})
    assert refused.value.field == field


def test_another_checkpoint_or_dtype_does_not_take_a_snapshot(
    model: Denoiser, checkpoint: Path, tiny_qwen_images: Callable[[int], Path]
) -> None:
    saved = model.save(after(model, prompt(), 1))
    for other, field in ((load(tiny_qwen_images(1)), "values.model"), (load(checkpoint, "bfloat16"), "values.dtype")):
        with pytest.raises(ModelError) as refused:
            other.resume(prompt(), saved.tensors, saved.values)
        assert refused.value.field == field


def test_it_is_resumable_and_shows_previews(model: Denoiser) -> None:
    assert isinstance(model, ResumableModel)
    assert isinstance(model, PreviewingModel)


def test_the_vae_is_loaded_once_and_for_previews_alone(checkpoint: Path, model: Denoiser) -> None:
    loads = list[int]()

    def load_once() -> QwenImageVae:
        loads.append(1)
        return load_vae(checkpoint, CPU, torch.float32)

    other = Denoiser(model._transformer, model._schedule, "identity", load_once)
    row = after(other, prompt(), 3)
    other.save(row)
    assert loads == []
    with torch.inference_mode():
        early = other.preview(row)
        other.step([row])
        last = other.preview(row)
    assert loads == [1]
    assert (early.dtype, early.shape) == (torch.uint8, (48 // 8, 64 // 8, 3))
    colours = fit_colours(load_vae(checkpoint, CPU, torch.float32))
    assert torch.equal(last, colours.picture(unpack(row.latents, row.size)))


def test_an_early_preview_is_nearer_to_the_end_than_the_noise_is(model: Denoiser) -> None:
    """Because it shows where the row would end if it went straight on."""
    with torch.inference_mode():
        row = model.begin(prompt(steps=20))
        previews = [model.preview(row).float()]
        for _ in range(20):
            model.step([row])
            previews.append(model.preview(row).float())
    distances = [(each - previews[-1]).abs().mean() for each in previews]
    assert distances[10] < 0.5 * distances[0]


# Bad input


@pytest.mark.parametrize(
    ("name", "tensor", "field"),
    [
        ("prompt_embeds", None, "prompt_embeds"),
        ("prompt_embeds", [embeds(3, 0)], "prompt_embeds"),
        ("prompt_embeds", torch.zeros(3, WIDTH, dtype=torch.int64), "prompt_embeds.dtype"),
        ("prompt_embeds", torch.zeros(3, WIDTH - 1), "prompt_embeds.shape"),
        ("prompt_embeds", torch.zeros(1, 3, WIDTH), "prompt_embeds.shape"),
        ("prompt_embeds", torch.zeros(0, WIDTH), "prompt_embeds.shape"),
        ("prompt_embeds", torch.zeros(1025, WIDTH), "prompt_embeds.shape"),
        ("prompt_embeds", torch.full((3, WIDTH), torch.inf), "prompt_embeds"),
        ("negative_prompt_embeds", torch.full((3, WIDTH), torch.nan), "negative_prompt_embeds"),
        ("negative_prompt_embeds", torch.zeros(3), "negative_prompt_embeds.shape"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused_with_their_field(
    model: Denoiser, name: str, tensor: Any, field: str
) -> None:
    given = prompt()
    with pytest.raises(ModelError) as refused:
        model.check(replace(given, tensors={**given.tensors, name: tensor}))
    assert refused.value.field == field


def test_embeddings_of_another_dtype_are_taken(model: Denoiser) -> None:
    rounded = embeds(7, 0).bfloat16()
    (one,), (other,) = (run(model, [prompt(text)]) for text in (rounded, rounded.float()))
    assert torch.equal(latents(one), latents(other))


def test_in_bfloat16_latents_and_lengths_of_steps_are_not_rounded(checkpoint: Path) -> None:
    """The reference rounds both. Where every step goes the same way, the end is known: it shows on any processor."""
    reference = QwenImageReference(checkpoint).pipeline.to(torch.bfloat16)
    rounded = load(checkpoint, "bfloat16")

    def go_on(module: torch.nn.Module, args: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.full_like(output[0], 0.3125),)  # which bfloat16 holds exactly

    for transformer in (rounded._transformer, reference.transformer):
        transformer.register_forward_hook(go_on)
    given = prompt(negative=None, steps=50)
    (ours,) = run(rounded, [given])
    noise = latent_noise(Size(48, 64), given.seed)
    theirs = reference(
        prompt_embeds=given.tensors["prompt_embeds"][None].bfloat16(),  # type: ignore[call-overload, union-attr]
        latents=noise[None].bfloat16(),
        height=48,
        width=64,
        num_inference_steps=50,
        output_type="latent",
    ).images[0]
    errors = [(each.float() - (noise - 0.3125)).abs().max() for each in (latents(ours), theirs)]
    assert latents(ours).dtype == torch.float32
    assert errors[0] < 1e-5
    assert errors[1] > 1e-3


# Checkpoints


def edited(checkpoint: Path, to: Path, file: str, **changes: Any) -> Path:
    import json
    import shutil

    shutil.copytree(checkpoint, to)
    config = json.loads((to / file).read_text())
    (to / file).write_text(json.dumps({**config, **changes}))
    return to


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("transformer/config.json", {"_class_name": "FluxTransformer2DModel"}, "not a QwenImageTransformer2DModel"),
        ("transformer/config.json", {"num_layers": 3}, "missing keys"),
        ("transformer/config.json", {"num_layers": 1}, "unexpected keys"),
        ("transformer/config.json", {"joint_attention_dim": 64}, "cannot be loaded"),
        ("transformer/config.json", {"zero_cond_t": True}, "another model"),
        ("scheduler/scheduler_config.json", {"_class_name": "UniPCMultistepScheduler"}, "UniPC"),
        ("scheduler/scheduler_config.json", {"stochastic_sampling": True}, "not supported"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    checkpoint: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(edited(checkpoint, tmp_path / "edited", file, **changes))


@pytest.mark.parametrize("name", ["diffusion_pytorch_model.safetensors", "config.json"])
def test_a_truncated_or_missing_file_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    broken = edited(checkpoint, tmp_path / "broken", "transformer/config.json")
    path = broken / "transformer" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError):
        load(broken)
    path.unlink()
    with pytest.raises(ConfigError):
        load(broken)
