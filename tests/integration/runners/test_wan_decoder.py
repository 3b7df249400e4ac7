"""Wan's decoding gives the frames of Diffusers' pipeline, whole and in tiles of space and time."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ModelError
from tests.integration.runners.qwen_image_prompts import run
from tests.integration.runners.wan_prompts import latents_prompt
from tests.oracles.wan import WanReference
from workers.models.wan.decoder import FilmDecoder, load_decoder
from workers.models.wan.parameters import PlaybackParameters
from workers.models.wan.vae import WanVae
from workers.runners.diffusion import step_budget
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig


@pytest.fixture(scope="module")
def reference(tiny_wans: Callable[[int], Path]) -> WanReference:
    return WanReference(tiny_wans(0))


@pytest.fixture(scope="module")
def model(tiny_wans: Callable[[int], Path]) -> FilmDecoder:
    return load_decoder(OmniModelConfig(tiny_wans(0), "wan", "decode"), torch.device("cpu"), None)


def tiled_model(model: FilmDecoder, whole_pixels: int = 0) -> FilmDecoder:
    return FilmDecoder(model._vae, whole_pixels, tile=64, stride=48)


def pixels(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output.tensors["pixels"]
    return tensor


def of(given: DiffusionPrompt) -> torch.Tensor:
    latents: Any = given.tensors["latents"]
    return latents


@pytest.mark.parametrize(("frames", "height", "width"), [(5, 16, 16), (13, 48, 32), (21, 16, 80)])
def test_videos_are_those_of_the_reference(
    model: FilmDecoder, reference: WanReference, frames: int, height: int, width: int
) -> None:
    given = latents_prompt(frames, height, width, fps=24.0)
    assert model.check(given).steps == (frames - 1) // 4 + 1
    (output,) = run(model, [given])
    expected = reference.pixels(of(given))
    assert pixels(output).shape == (frames, height, width, 3) == expected.shape
    assert (pixels(output).int() - expected.int()).abs().max() <= 1
    assert output.values == {"frame_rate": 24.0}


@pytest.mark.parametrize(("frames", "height", "width", "tiles"), [(9, 112, 80, 6), (5, 64, 112, 6), (13, 16, 144, 3)])
def test_tiles_are_joined_as_the_reference_joins_them(
    model: FilmDecoder, reference: WanReference, frames: int, height: int, width: int, tiles: int
) -> None:
    given = latents_prompt(frames, height, width)
    tiled = tiled_model(model)
    assert tiled.check(given).steps == tiles * ((frames - 1) // 4 + 1)
    vae = reference.pipeline.vae
    vae.enable_tiling(64, 64, 48, 48)
    try:
        expected = reference.pixels(of(given))
    finally:
        vae.use_tiling = False
    (output,) = run(tiled, [given])
    assert (pixels(output).int() - expected.int()).abs().max() <= 1


def test_a_video_of_several_tiles_is_as_alone_among_others(model: FilmDecoder) -> None:
    tiled = tiled_model(model, 64 * 64)
    prompts = [latents_prompt(5, 80, 96), latents_prompt(9, 48, 64, seed=1), latents_prompt(9, 16, 112, seed=2)]
    alone = [run(tiled, [each])[0] for each in prompts]
    for one, other in zip(alone, run(tiled, prompts, late=[0, 1, 2]), strict=True):
        assert torch.equal(pixels(one), pixels(other))


def test_a_video_for_whose_frames_memory_lacks_is_decoded_in_tiles(
    model: FilmDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first latent frame, of one frame, fits; the second, of four, does not."""
    whole, small = latents_prompt(9, 80, 96), latents_prompt(5, 64, 64, seed=1)
    expected = run(tiled_model(model), [whole])[0]
    asked: list[int] = []
    kept: list[weakref.ref[torch.Tensor]] = []  # of the frames before the one for which memory lacked
    decode = WanVae.frames

    def little_memory(vae: WanVae, latents: torch.Tensor, past: Any) -> Any:
        asked.append(latents.shape[2] * latents.shape[3])
        if past is not None and asked[-1] > 8 * 8:
            kept.extend(weakref.ref(each) for each in past if isinstance(each, torch.Tensor))
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert not any(each() is not None for each in kept), "a tile is decoded beside the past of whole frames"
        return decode(vae, latents, past)

    monkeypatch.setattr(WanVae, "frames", little_memory)
    monkeypatch.setattr(step_budget, "_STEPS_UNTIL_GROWTH", 100)
    decoder = tiled_model(model, 1 << 20)
    first, second, third = (run(decoder, [each])[0] for each in (whole, whole, small))
    assert kept
    assert torch.equal(pixels(first), pixels(expected))
    assert torch.equal(pixels(second), pixels(expected))
    assert pixels(third).shape == (5, 64, 64, 3)
    assert [area for area in asked if area > 64] == [10 * 12] * 2  # what did not fit is not tried again at once


@torch.inference_mode()
def test_a_video_for_whose_tiles_memory_lacks_too_is_tried_again_in_tiles(
    model: FilmDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = latents_prompt(9, 80, 96)
    expected = run(tiled_model(model), [given])[0]
    decoder = tiled_model(model, 1 << 20)
    row = decoder.begin(given)
    decoder.step([row])

    def no_memory(vae: WanVae, latents: torch.Tensor, past: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as lacking:
        lacking.setattr(WanVae, "frames", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            decoder.step([row])
    decoder._whole.units = decoder._whole.max_units  # there is room for whole frames again
    while row.steps_done < decoder.check(given).steps:
        decoder.step([row])
    (found,) = (output for _, output in decoder.finish([row], lambda number: True))
    assert torch.equal(pixels(found), pixels(expected))


LATENTS = torch.zeros(16, 2, 4, 6)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"latents": [LATENTS]},
        {"latents": LATENTS[:-1]},  # of fewer channels
        {"latents": LATENTS[:, 0]},  # a picture's
        {"latents": LATENTS[:, :1]},  # a video of one frame
        {"latents": LATENTS.repeat(1, 1250, 1, 1)},  # of ten thousand
        {"latents": LATENTS[:, :, :-1]},  # half a token
        {"latents": LATENTS.repeat(1, 1, 1, 100)},  # wider than any video
        {"latents": LATENTS.long()},
        {"latents": LATENTS / 0},
    ],
)
def test_latents_that_do_not_fit_are_refused_with_their_field(model: FilmDecoder, tensors: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as refused:
        model.check(DiffusionPrompt(tensors, {}, PlaybackParameters(), 0))
    assert str(refused.value.field).partition(".")[0] == "latents"
