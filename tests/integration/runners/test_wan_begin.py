"""Videos that begin with a picture: what the transformers see of it, and the latents, have the bits of Diffusers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from omni_jobs.errors import ConfigError, ModelError
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.wan_prompts import film_prompt, states
from tests.oracles.wan_i2v import WanPictureReference
from tests.source_pictures import drawn
from workers.models.pictures.source import bytes_of, scaled
from workers.models.wan.begin import BeginEncoder, load_begin_encoder
from workers.models.wan.denoiser import FilmDenoiser, load_animator, load_denoiser
from workers.models.wan.parameters import AnimateParameters, BeginParameters
from workers.models.wan.size import FilmSize
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tiny_wan_i2vs: Callable[[int], Path]) -> Path:
    return tiny_wan_i2vs(0)


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> BeginEncoder:
    return load_begin_encoder(OmniModelConfig(checkpoint, "wan_i2v", "begin"), CPU, None)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> FilmDenoiser:
    return animator(checkpoint)


def animator(checkpoint: Path) -> FilmDenoiser:
    return load_animator(OmniModelConfig(checkpoint, "wan_i2v", "denoise"), CPU, None)


def begin_prompt(picture: Image.Image, size: FilmSize) -> DiffusionPrompt:
    pixels = bytes_of(scaled(picture, size.height, size.width))
    return DiffusionPrompt({"picture": pixels}, {"frames": size.frames}, BeginParameters(), 0)


def animate_prompt(begin: torch.Tensor, tokens: int, negative: int | None, seed: int, **parameters: Any) -> Any:
    tensors = {"prompt_embeds": states(tokens, seed), "begin_latents": begin}
    if negative is not None:
        tensors["negative_prompt_embeds"] = states(negative, 77)
    return DiffusionPrompt(tensors, {}, AnimateParameters(**{"steps": 4} | parameters), seed)


def begin_of(encoder: BeginEncoder, picture: Image.Image, size: FilmSize) -> torch.Tensor:
    (output,) = run(encoder, [begin_prompt(picture, size)])
    latents: Any = output.tensors["begin_latents"]
    return latents


@pytest.mark.parametrize("checkpoint_seed", [0, 1, 2])
def test_videos_have_the_bits_of_the_reference(checkpoint_seed: int, tiny_wan_i2vs: Callable[[int], Path]) -> None:
    checkpoint = tiny_wan_i2vs(checkpoint_seed)
    reference, ours = WanPictureReference(checkpoint), animator(checkpoint)
    encoder = load_begin_encoder(OmniModelConfig(checkpoint, "wan_i2v", "begin"), CPU, None)
    cases = [
        (FilmSize(5, 32, 48), 1, (4.0, 3.0), 6, 6, 0),
        (FilmSize(13, 48, 32), 6, (2.0, 5.0), 40, 1, 5),
        (FilmSize(9, 16, 64), 4, (3.5, 3.5), 7, None, 8),
    ]
    for size, steps, scales, tokens, negative, seed in cases:
        picture = drawn(50, 70, seed)
        given = {"height": size.height, "width": size.width, "num_frames": size.frames}
        begin = begin_of(encoder, picture, size)
        assert torch.equal(begin, reference.begin(picture, **given)[4:])
        prompt = animate_prompt(
            begin, tokens, negative, seed, steps=steps, guidance_scale=scales[0], guidance_scale_2=scales[1]
        )
        texts: Any = prompt.tensors
        expected = reference.latents(
            texts["prompt_embeds"], texts.get("negative_prompt_embeds"), picture, scales=scales, seed=seed,
            num_inference_steps=steps, **given,
        )  # fmt: skip
        assert torch.equal(ours.begin(prompt).begin, reference.begin(picture, **given))  # type: ignore[arg-type]
        (output,) = run(ours, [prompt])
        assert torch.equal(output.tensors["latents"], expected)  # type: ignore[arg-type]


def test_videos_in_company_and_after_a_snapshot_are_as_alone(encoder: BeginEncoder, model: FilmDenoiser) -> None:
    size = FilmSize(9, 32, 48)
    begins = [begin_of(encoder, drawn(32, 48, seed), size) for seed in range(3)]
    prompts = [animate_prompt(begin, 5 + n, n or None, n, steps=3 + n) for n, begin in enumerate(begins)]
    alone = [run(model, [each])[0].tensors["latents"] for each in prompts]
    for one, output in zip(alone, run(model, prompts, late=[0, 1, 2]), strict=True):
        other: Any = output.tensors["latents"]
        assert (one - other).abs().max() <= 1e-5 * one.abs().max()  # type: ignore[operator, union-attr]
    with torch.inference_mode():
        row = model.begin(prompts[2])
        model.step([row])
        model.step([row])
        saved = model.save(row)
        resumed = model.resume(prompts[2], saved.tensors, saved.values)
        while resumed.steps_done < 5:
            model.step([resumed])
    assert torch.equal(resumed.latents, alone[2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("height", "width", "parameters", "size"),
    [
        (480, 832, {}, (81, 480, 832)),
        (1000, 1000, {}, (81, 624, 624)),
        (10, 1000, {}, (81, 48, 1280)),
        (500, 100, {"seconds": 1.0}, (17, 1280, 272)),
        (10, 10, {"width": 64, "height": 32, "num_frames": 5}, (5, 32, 64)),
        (10, 10, {"width": 64}, (81, 624, 64)),
    ],
)
def test_the_size_may_be_left_to_the_picture(
    height: int, width: int, parameters: dict[str, Any], size: tuple[int, int, int]
) -> None:
    found = FilmSize.of_picture(BeginParameters(**parameters), height, width)
    assert tuple(found) == size
    assert found.is_possible


PICTURE = torch.zeros(32, 48, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("picture", "frames", "field"),
    [
        (None, 5, "picture"),
        (PICTURE.float(), 5, "picture"),
        (PICTURE[..., 0], 5, "picture"),
        (PICTURE[..., :2], 5, "picture.shape"),
        (PICTURE[:31], 5, "picture.shape"),
        (PICTURE, 1, "frames"),
        (PICTURE, 10_001, "frames"),
        (PICTURE, 6, "frames"),
        (PICTURE, None, "frames"),
    ],
)
def test_a_picture_that_does_not_fit_is_refused_with_its_field(
    encoder: BeginEncoder, picture: Any, frames: Any, field: str
) -> None:
    with pytest.raises(ModelError) as refused:
        encoder.check(DiffusionPrompt({"picture": picture}, {"frames": frames}, BeginParameters(), 0))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "begin",
    [None, torch.zeros(16, 2, 4), torch.zeros(20, 2, 4, 6), torch.zeros(16, 1, 4, 6), torch.ones(16, 2, 4, 6) / 0],
)
def test_a_begin_that_does_not_fit_is_refused(model: FilmDenoiser, begin: Any) -> None:
    with pytest.raises(ModelError) as refused:
        model.check(animate_prompt(begin, 5, None, 0))
    assert str(refused.value.field).partition(".")[0] == "begin_latents"


def test_neither_checkpoint_does_what_the_other_one_does(
    model: FilmDenoiser, checkpoint: Path, tiny_wans: Callable[[int], Path]
) -> None:
    with pytest.raises(ConfigError, match="not a WanPipeline"):
        load_denoiser(OmniModelConfig(checkpoint, "wan", "denoise"), CPU, None)
    with pytest.raises(ConfigError, match="not a WanImageToVideoPipeline"):
        animator(tiny_wans(0))
    with pytest.raises(ModelError, match="begins with no picture"):
        model.check(film_prompt())
