"""Qwen-Image's decoding gives the pixels of Diffusers' pipeline, whole and in tiles; previews are near to them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.pipelines.parameters import StageParameters
from tests.integration.runners.qwen_image_prompts import run
from tests.oracles.qwen_image import QwenImageReference
from workers.models.pictures.colours import fit_colours
from workers.models.pictures.decoder import PictureDecoder
from workers.models.qwen_image.latents import noise, pack, unpack
from workers.models.qwen_image.size import Size
from workers.models.qwen_image.vae import load_decoder, load_vae
from workers.runners.diffusion import step_budget
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> QwenImageReference:
    return QwenImageReference(checkpoint)


def load(checkpoint: Path, dtype: str | None = None) -> PictureDecoder:
    return load_decoder(OmniModelConfig(checkpoint, "qwen_image", "decode"), CPU, dtype)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> PictureDecoder:
    return load(checkpoint)


def prompt(height: int, width: int, seed: int = 0) -> DiffusionPrompt:
    size = Size(height, width)
    return DiffusionPrompt({"latents": unpack(noise(size, seed), size)}, {}, StageParameters(), seed)


def packed(given: DiffusionPrompt) -> torch.Tensor:
    latents: Any = given.tensors["latents"]
    return pack(latents)


def size_of(given: DiffusionPrompt) -> dict[str, int]:
    latents: Any = given.tensors["latents"]
    return {"height": 8 * latents.shape[1], "width": 8 * latents.shape[2]}


def pixels(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output.tensors["pixels"]
    return tensor


SIZES = [(16, 16), (64, 48), (48, 256), (256, 256)]


def test_pictures_are_those_of_the_reference(model: PictureDecoder, reference: QwenImageReference) -> None:
    prompts = [prompt(height, width, seed) for seed, (height, width) in enumerate(SIZES)]
    assert [model.check(each).steps for each in prompts] == [1, 1, 1, 1]
    for given, output in zip(prompts, run(model, prompts), strict=True):
        expected = reference.pixels(packed(given), **size_of(given))
        assert pixels(output).shape == expected.shape
        assert (pixels(output).int() - expected.int()).abs().max() <= 1
        assert output.values == {}


@pytest.mark.parametrize(
    ("height", "width", "tiles"), [(112, 224, 15), (80, 64, 4), (144, 16, 3), (96, 96, 4), (64, 256, 12)]
)
def test_tiles_are_joined_as_the_reference_joins_them(
    model: PictureDecoder, reference: QwenImageReference, height: int, width: int, tiles: int
) -> None:
    vae = reference.pipeline.vae
    tiled = PictureDecoder(model._vae, whole_pixels=0, tile=64, stride=48)
    given = prompt(height, width)
    assert tiled.check(given).steps == tiles
    vae.enable_tiling(64, 64, 48, 48)
    try:
        expected = reference.pixels(packed(given), height=height, width=width)
    finally:
        vae.use_tiling = False
    (output,) = run(tiled, [given])
    assert (pixels(output).int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize(
    "lack",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["GPU", "CPU"],
)
def test_a_picture_for_which_memory_lacks_as_a_whole_is_decoded_in_tiles(
    model: PictureDecoder, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    whole, small = prompt(96, 112), prompt(64, 64, 1)
    tiled = PictureDecoder(model._vae, whole_pixels=0, tile=64, stride=48)
    expected = run(tiled, [whole])[0]
    asked: list[int] = []
    decode = type(model._vae).pixels

    def little_memory(vae: Any, latents: torch.Tensor) -> torch.Tensor:
        asked.append(latents.shape[2] * latents.shape[3])
        if asked[-1] > 8 * 8:
            raise lack
        return decode(vae, latents)

    monkeypatch.setattr(type(model._vae), "pixels", little_memory)
    monkeypatch.setattr(step_budget, "_STEPS_UNTIL_GROWTH", 4)  # in place of 64: a tile takes 20 ms
    decoder = PictureDecoder(model._vae, tile=64, stride=48)
    assert decoder.check(whole).steps == 1
    first, second, third = (run(decoder, [each])[0] for each in (whole, whole, small))
    assert torch.equal(pixels(first), pixels(expected))
    assert torch.equal(pixels(second), pixels(expected))
    assert pixels(third).shape == (64, 64, 3)
    assert [area for area in asked if area > 64] == [12 * 14]  # what did not fit is not tried again at once
    while [area for area in asked if area > 64] == [12 * 14] and len(asked) < 1000:
        run(decoder, [small])
        run(decoder, [whole])
    assert [area for area in asked if area > 64] == [12 * 14] * 2  # memory may be there again after some steps
    smaller = PictureDecoder(model._vae, tile=128, stride=96)
    with pytest.raises(type(lack)):  # a picture of one tile has none to be divided into
        run(smaller, [whole])


def test_a_picture_of_several_tiles_is_as_alone_among_others(model: PictureDecoder) -> None:
    tiled = PictureDecoder(model._vae, whole_pixels=64 * 64, tile=64, stride=48)
    prompts = [prompt(96, 112), prompt(48, 64, 1), prompt(16, 400, 2)]
    alone = [run(tiled, [each])[0] for each in prompts]
    for one, other in zip(alone, run(tiled, prompts, late=[0, 1, 2]), strict=True):
        assert torch.equal(pixels(one), pixels(other))


def test_a_large_picture_is_decoded_in_tiles(model: PictureDecoder) -> None:
    assert model.check(prompt(1024, 1024)).steps == 1
    assert model.check(prompt(1024, 1040)).steps == 9


def test_packing_is_the_inverse_of_unpacking() -> None:
    tokens = noise(Size(48, 80), 3)
    assert torch.equal(pack(unpack(tokens, Size(48, 80))), tokens)


LATENTS = unpack(noise(Size(48, 64), 0), Size(48, 64))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"latents": [LATENTS]},
        {"latents": LATENTS[:-1]},  # of fewer channels
        {"latents": LATENTS[0]},
        {"latents": LATENTS[None]},
        {"latents": LATENTS[:, :-1]},  # half a token
        {"latents": LATENTS[:, :0]},
        {"latents": LATENTS.repeat(1, 1, 100)},  # longer than any picture
        {"latents": LATENTS.long()},
        {"latents": LATENTS / 0},
    ],
)
def test_latents_that_do_not_fit_are_refused_with_their_field(model: PictureDecoder, tensors: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as refused:
        model.check(DiffusionPrompt(tensors, {}, StageParameters(), 0))
    assert str(refused.value.field).partition(".")[0] == "latents"


def test_in_bfloat16_a_picture_is_nearly_the_same(model: PictureDecoder, checkpoint: Path) -> None:
    (exact,), (rounded,) = (run(each, [prompt(64, 64)]) for each in (model, load(checkpoint, "bfloat16")))
    assert (pixels(exact).float() - pixels(rounded).float()).abs().mean() < 3


def edited(checkpoint: Path, to: Path, **changes: Any) -> Path:
    shutil.copytree(checkpoint, to)
    config = json.loads((to / "vae" / "config.json").read_text())
    (to / "vae" / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def test_a_vae_that_asks_for_float32_gets_it(checkpoint: Path, tmp_path: Path) -> None:
    upcast = load(edited(checkpoint, tmp_path / "upcast", force_upcast=True), "bfloat16")
    assert upcast._vae.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "AutoencoderKL"}, "not a AutoencoderKLQwenImage"),
        ({"z_dim": 8}, "cannot be loaded"),
        ({"dim_mult": [1, 2, 4], "temperal_downsample": [False, True]}, "vae"),
    ],
)
def test_another_vae_is_refused(checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(edited(checkpoint, tmp_path / "edited", **changes))


def test_a_vae_of_other_pixels_to_a_latent_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    from diffusers import AutoencoderKLQwenImage

    vae = AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1, dim_mult=[1, 2, 4], temperal_downsample=[False, True])
    vae.save_pretrained(tmp_path / "vae")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path)
    assert refused.value.to_dict()["field"] == "temperal_downsample"


# Previews


def test_a_preview_is_near_to_the_small_picture(checkpoint: Path, model: PictureDecoder) -> None:
    """Of latents that are smooth, as a picture's are: nearer than its mean colour is."""
    fields = torch.randn(16, 4, 4, generator=torch.Generator().manual_seed(9))
    smooth = fields.repeat_interleave(4, 1).repeat_interleave(4, 2)
    (output,) = run(model, [DiffusionPrompt({"latents": smooth}, {}, StageParameters(), 0)])
    small = functional.avg_pool2d(pixels(output).permute(2, 0, 1)[None].float(), 8)[0].permute(1, 2, 0)
    preview = fit_colours(load_vae(checkpoint, CPU, torch.float32)).picture(smooth)
    assert (preview.dtype, preview.shape) == (torch.uint8, (16, 16, 3))
    error = (preview.float() - small).square().mean()
    assert error < 0.9 * (small - small.mean((0, 1))).square().mean()
