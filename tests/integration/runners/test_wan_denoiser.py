"""Wan's denoising equals Diffusers' pipeline alone, and in company itself alone."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, ModelError
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.wan_prompts import film_prompt, states
from tests.oracles.wan import WanReference
from workers.models.wan.denoiser import FilmDenoiser, load_denoiser
from workers.models.wan.tiny_checkpoint import HIDDEN
from workers.runners.diffusion.model import PreviewingModel, ResumableModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")


def load(checkpoint: Path, dtype: str | None = None) -> FilmDenoiser:
    return load_denoiser(OmniModelConfig(checkpoint, "wan", "denoise"), CPU, dtype)


@pytest.fixture(scope="module")
def checkpoint(tiny_wans: Callable[[int], Path]) -> Path:
    return tiny_wans(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> FilmDenoiser:
    return load(checkpoint)


def latents(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output.tensors["latents"]
    return tensor


CASES: list[tuple[int, int, int, int, tuple[float, float], int, int | None, int]] = [
    # height, width, frames, steps, scales, tokens, negative tokens, seed
    (16, 16, 5, 1, (4.0, 3.0), 6, 6, 0),
    (32, 48, 9, 2, (4.0, 3.0), 40, 5, 2**63 - 1),
    (48, 32, 13, 8, (1.0, 3.0), 9, 5, 7),
    (64, 64, 5, 20, (7.5, 1.0), 512, 1, 8),
    (16, 96, 21, 5, (2.0, 5.0), 12, None, 9),
]


@pytest.mark.parametrize("checkpoint_seed", [0, 1, 2])
def test_a_row_alone_has_the_bits_of_the_reference(checkpoint_seed: int, tiny_wans: Callable[[int], Path]) -> None:
    reference = WanReference(tiny_wans(checkpoint_seed))
    ours = load(tiny_wans(checkpoint_seed))
    for height, width, frames, steps, scales, tokens, negative, seed in CASES:
        given = film_prompt(
            tokens, negative, seed=seed % 100, height=height, width=width, num_frames=frames, steps=steps,
            guidance_scale=scales[0], guidance_scale_2=scales[1],
        )  # fmt: skip
        given = replace(given, seed=seed)
        text: Any = given.tensors["prompt_embeds"]
        unwanted: Any = given.tensors.get("negative_prompt_embeds")
        expected = reference.latents(
            text, unwanted, height=height, width=width, num_frames=frames, num_inference_steps=steps, scales=scales,
            seed=seed,
        )  # fmt: skip
        (output,) = run(ours, [given])
        assert torch.isfinite(expected).all()
        assert torch.equal(latents(output), expected)


def test_both_transformers_take_their_steps_and_guidance(model: FilmDenoiser) -> None:
    """Diffusers goes over at 875 of 1000, whatever the number of steps."""
    turns: list[int] = []
    hooks = [
        transformer.register_forward_pre_hook(lambda *_, number=number: turns.append(number))
        for number, transformer in enumerate(model.experts.transformers)
    ]
    run(model, [film_prompt(negative=None, steps=6)])
    for hook in hooks:
        hook.remove()
    assert turns == sorted(turns)
    assert set(turns) == {0, 1}
    first, second = (run(model, [film_prompt(steps=6, **{name: 9.0})])[0] for name in SCALES)
    plain = run(model, [film_prompt(steps=6)])[0]
    assert not torch.equal(latents(first), latents(plain))
    assert not torch.equal(latents(second), latents(plain))


SCALES = ("guidance_scale", "guidance_scale_2")

ROWS = st.builds(
    film_prompt,
    st.integers(1, 40),
    st.sampled_from([None, 1, 5, 23]),
    seed=st.integers(0, 50),
    steps=st.integers(1, 7),
    guidance_scale=st.sampled_from([1.0, 1.5, 4.0]),
    guidance_scale_2=st.sampled_from([1.0, 3.0]),
    height=st.sampled_from([16, 32]),
    num_frames=st.sampled_from([5, 9]),
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, min_size=8, max_size=8),
    late=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    joint_tokens=st.sampled_from([0, 30, 10_000]),
)
def test_rows_in_company_are_as_alone(
    model: FilmDenoiser, rows: list[DiffusionPrompt], late: list[int], joint_tokens: int
) -> None:
    """They are at different steps, and so of different transformers, in one step."""
    alone = [run(model, [row])[0] for row in rows]
    model.joint.units = joint_tokens
    try:
        together = run(model, rows, late)
    finally:
        model.joint.units = 0
    for one, other in zip(alone, together, strict=True):
        scale = latents(one).abs().max()
        assert (latents(one) - latents(other)).abs().max() <= 1e-5 * scale


def test_videos_of_other_sizes_or_lengths_are_of_other_groups(model: FilmDenoiser) -> None:
    sizes = [(32, 64, 5), (64, 32, 5), (32, 64, 9), (32, 64, 5)]
    groups = [model.check(film_prompt(height=h, width=w, num_frames=n)).group for h, w, n in sizes]
    assert groups[0] == groups[3]
    assert len(set(groups)) == 3


@pytest.mark.parametrize(("scale", "negative", "units"), [(4.0, 5, 36), (1.0, 5, 18), (4.0, None, 18)])
def test_the_cost_is_the_tokens_of_a_step(model: FilmDenoiser, scale: float, negative: int | None, units: int) -> None:
    cost = model.check(film_prompt(7, negative, num_frames=9, steps=9, guidance_scale=scale))
    assert (cost.units, cost.steps) == (units, 9)


def test_a_step_that_raises_moves_no_row(model: FilmDenoiser) -> None:
    """The row at the noise has taken its forward when that of the other transformer fails."""

    def break_down(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with torch.inference_mode():
        rows = [after(model, film_prompt(seed=seed), steps) for seed, steps in ((1, 3), (2, 0))]
        before = [(row.latents.clone(), row.solver) for row in rows]
        hook = model.experts.transformers[1].register_forward_pre_hook(break_down)
        with pytest.raises(torch.OutOfMemoryError):
            model.step(rows)
        hook.remove()
    for row, (latents_before, solver) in zip(rows, before, strict=True):
        assert row.solver is solver
        assert torch.equal(row.latents, latents_before)


# Snapshots


@torch.inference_mode()
def after(model: FilmDenoiser, given: DiffusionPrompt, steps: int) -> Any:
    row = model.begin(given)
    for _ in range(steps):
        model.step([row])
    return row


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_row_goes_on_from_its_snapshot_to_the_same_bits(checkpoint: Path, model: FilmDenoiser, steps: int) -> None:
    given = film_prompt(seed=3, steps=6)
    row = after(model, given, steps)
    saved = model.save(row)
    kept = saved.tensors["latents"].clone()  # type: ignore[union-attr]
    other = load(checkpoint)  # another process has its own
    with torch.inference_mode():
        resumed = other.resume(given, saved.tensors, saved.values)
        assert resumed.steps_done == steps
        while resumed.steps_done < 6:
            other.step([resumed])
        for _ in range(6 - steps):
            model.step([row])
    assert torch.equal(resumed.latents, row.latents)
    assert torch.equal(saved.tensors["latents"], kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 4}, "seed"),
        ({"steps": 5}, "steps"),
        ({"num_frames": 9}, "frames"),
        ({"width": 32}, "width"),
        ({"guidance_scale_2": 2.0}, "guidance_scales"),
        ({"guidance_scale": 1.0}, "guidance_scales"),
        ({"negative": None}, "guidance_scales"),
    ],
)
def test_another_job_does_not_take_a_snapshot(model: FilmDenoiser, changes: dict[str, Any], field: str) -> None:
    saved = model.save(after(model, film_prompt(seed=3), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(film_prompt(**{"seed": 3} | changes), saved.tensors, saved.values)
    assert refused.value.field == f"values.{field}"


LATENTS = torch.zeros(16, 2, 4, 6)


@pytest.mark.parametrize(
    ("tensors", "values", "field"),
    [
        ({"latents": None}, {}, "tensors.latents"),
        ({"latents": LATENTS[:, :1]}, {}, "tensors.latents"),
        ({"latents": LATENTS + torch.nan}, {}, "tensors.latents"),
        ({"corrected": [LATENTS]}, {}, "tensors.corrected"),
        ({"foreseen": LATENTS}, {}, "tensors.foreseen"),
        ({"foreseen": [LATENTS]}, {}, "tensors.foreseen"),
        ({"foreseen": [LATENTS, LATENTS.long()]}, {}, "tensors.foreseen.1"),
        ({}, {"steps_done": 5}, "values.steps_done"),
        ({}, {"version": 2}, "values.version"),
        ({}, {"model": "another"}, "values.model"),
        ({}, {"dtype": "bfloat16"}, "values.dtype"),
    ],
)
def test_a_snapshot_that_is_wrong_is_refused_with_its_field(
    model: FilmDenoiser, tensors: dict[str, Any], values: dict[str, Any], field: str
) -> None:
    saved = model.save(after(model, film_prompt(seed=3), 2))
    with pytest.raises(ModelError) as refused:
        model.resume(film_prompt(seed=3), {**saved.tensors, **tensors}, {**saved.values, **values})
    assert refused.value.field == field


def test_another_checkpoint_does_not_take_a_snapshot(model: FilmDenoiser, tiny_wans: Callable[[int], Path]) -> None:
    saved = model.save(after(model, film_prompt(), 1))
    with pytest.raises(ModelError) as refused:
        load(tiny_wans(1)).resume(film_prompt(), saved.tensors, saved.values)
    assert refused.value.field == "values.model"


def test_it_is_resumable_and_shows_a_frame(model: FilmDenoiser) -> None:
    assert isinstance(model, ResumableModel)
    assert isinstance(model, PreviewingModel)
    with torch.inference_mode():
        row = after(model, film_prompt(num_frames=9), 0)
        previews = [model.preview(row)]
        for _ in range(4):
            model.step([row])
            previews.append(model.preview(row))
    assert {(each.dtype, tuple(each.shape)) for each in previews} == {(torch.uint8, (4, 6, 3))}
    # The last step ends where it saw the video go.
    assert torch.equal(previews[-1], model.colours().picture(row.latents[:, 1]))


# Bad input


@pytest.mark.parametrize(
    ("name", "tensor", "field"),
    [
        ("prompt_embeds", None, "prompt_embeds"),
        ("prompt_embeds", [states(3, 0)], "prompt_embeds"),
        ("prompt_embeds", torch.zeros(3, HIDDEN, dtype=torch.int64), "prompt_embeds.dtype"),
        ("prompt_embeds", torch.zeros(3, HIDDEN - 1), "prompt_embeds.shape"),
        ("prompt_embeds", torch.zeros(0, HIDDEN), "prompt_embeds.shape"),
        ("prompt_embeds", torch.zeros(513, HIDDEN), "prompt_embeds.shape"),
        ("negative_prompt_embeds", torch.full((3, HIDDEN), torch.nan), "negative_prompt_embeds"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused_with_their_field(
    model: FilmDenoiser, name: str, tensor: Any, field: str
) -> None:
    given = film_prompt()
    with pytest.raises(ModelError) as refused:
        model.check(replace(given, tensors={**given.tensors, name: tensor}))
    assert refused.value.field == field


def edited(checkpoint: Path, to: Path, file: str, **changes: Any) -> Path:
    shutil.copytree(checkpoint, to)
    config = json.loads((to / file).read_text())
    (to / file).write_text(json.dumps({**config, **changes}))
    return to


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("transformer_2/config.json", {"_class_name": "FluxTransformer2DModel"}, "not a WanTransformer3DModel"),
        ("transformer/config.json", {"num_layers": 3}, "missing keys"),
        ("scheduler/scheduler_config.json", {"_class_name": "FlowMatchEulerDiscreteScheduler"}, "not UniPC"),
        ("scheduler/scheduler_config.json", {"prediction_type": "epsilon"}, "flow_prediction"),
        ("scheduler/scheduler_config.json", {"use_karras_sigmas": True}, "False"),
        ("model_index.json", {"expand_timesteps": True}, "a time for each token"),
        ("model_index.json", {"boundary_ratio": None}, "between 0 and 1"),
        ("model_index.json", {"_class_name": "WanVACEPipeline"}, "not a WanPipeline"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    checkpoint: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(edited(checkpoint, tmp_path / "edited", file, **changes))


def test_a_part_that_is_truncated_or_a_pickle_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    broken = edited(checkpoint, tmp_path / "broken", "model_index.json")
    path = broken / "transformer_2" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError):
        load(broken)
    path.rename(path.with_suffix(".bin"))  # which is never unpickled
    with pytest.raises(ConfigError):
        load(broken)
