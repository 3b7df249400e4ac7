import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.runners.echo.bars import BarsPrompt, MovingBarsPrompt
from workers.runners.echo.card import colour_bars, emerging, strip
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.echo.parameters import BarsParameters
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput, Progress


def prompt(*sources: np.ndarray, height: int = 96, width: int = 160, **others: Any) -> BarsPrompt:
    fields = {"text": "a boat", "seed": 7, "steps": 4, "delay_s": 0.0, "previews": False}
    return BarsPrompt(height=height, width=width, sources=sources, **fields | others)


async def made(
    made_of: BarsPrompt | MovingBarsPrompt, progress: Callable[[Progress], None] = lambda progress: None
) -> np.ndarray:
    output = await output_of(made_of, progress)
    pixels = output.multimodal_outputs["pixels"]
    assert isinstance(pixels, np.ndarray)
    return pixels


async def output_of(
    made_of: BarsPrompt | MovingBarsPrompt, progress: Callable[[Progress], None]
) -> OmniModelRunnerOutput:
    runner = EchoRunner(OmniEngineArgs("picture", None, "cpu", None, 2))
    await runner.start()
    try:
        return await runner.run(made_of, progress)
    finally:
        await runner.close()


def digest(pixels: np.ndarray) -> bytes:
    """Read the bits of the strip: the first pixel of each square."""
    height, width = len(pixels) // 6, pixels.shape[1]
    rows = [-(-row * height // 8) for row in range(8)]
    columns = [-(-column * width // 32) for column in range(32)]
    below = pixels[len(pixels) - height :]
    return np.packbits(below[rows][:, columns, 0] > 127).tobytes()


@pytest.mark.parametrize("size", [(64, 64), (96, 160), (2048, 65), (487, 1001)])
async def test_the_strip_tells_text_and_seed(size: tuple[int, int]) -> None:
    pixels = await made(prompt(height=size[0], width=size[1], text="ein Böot 🛶", seed=3))
    assert pixels.shape == (*size, 3)
    assert digest(pixels) == hashlib.sha256("3\nein Böot 🛶".encode()).digest()


def test_there_are_eight_bars_of_one_width() -> None:
    bars = colour_bars(2, 16)
    assert bars[0].tolist() == bars[1].tolist()
    assert [tuple(colour) for colour in bars[0, ::2]] == [
        (191, 191, 191), (191, 191, 0), (0, 191, 191), (0, 191, 0), (191, 0, 191), (191, 0, 0), (0, 0, 191), (0, 0, 0),
    ]  # fmt: skip
    assert (bars[:, ::2] == bars[:, 1::2]).all()


async def test_pictures_stand_side_by_side_in_inverted_colours() -> None:
    left, right = np.full((96, 60, 3), (10, 20, 30), np.uint8), np.full((96, 100, 3), 200, np.uint8)
    pixels = await made(prompt(left, right))
    assert (pixels[:80, :60] == (245, 235, 225)).all()
    assert (pixels[:80, 60:] == 55).all()
    assert digest(pixels) == hashlib.sha256(b"7\na boat").digest()


async def test_a_video_moves_once_around_in_four_seconds() -> None:
    source = np.random.default_rng(2).integers(0, 256, (96, 160, 3)).astype(np.uint8)
    output = await output_of(MovingBarsPrompt(prompt(source), frames=9, fps=2), lambda progress: None)
    pixels = output.multimodal_outputs["pixels"]
    assert output.values == {"frame_rate": 2}
    assert pixels.shape == (9, 96, 160, 3)
    for number, frame in enumerate(pixels):
        assert (frame[:80] == np.roll(source, 20 * number, axis=1)[:80]).all()
        assert (frame[80:] == pixels[0, 80:]).all()
    assert (pixels[8] == pixels[0]).all()


async def test_each_step_has_a_preview_that_shows_more_of_the_picture() -> None:
    seen: list[Progress] = []
    pixels = await made(prompt(height=256, width=384, previews=True), seen.append)
    assert [(each.done, each.total, each.unit) for each in seen] == [(n, 4, "steps") for n in range(5)]
    previews = [np.asarray(each.picture).astype(int) for each in seen[1:]]
    assert seen[0].picture is None
    assert all(each.shape == (86, 128, 3) for each in previews)
    distances = [np.abs(each - pixels[::3, ::3]).mean() for each in previews]
    assert distances == sorted(distances, reverse=True)
    assert len(set(distances)) == 4
    assert distances[-1] == 0


async def test_a_job_that_asks_for_none_has_no_previews() -> None:
    seen: list[Progress] = []
    await made(prompt(), seen.append)
    assert len(seen) == 5
    assert {each.picture is None for each in seen} == {True}


def test_the_noise_is_the_seeds() -> None:
    bars = colour_bars(64, 64)
    assert (emerging(bars, 0.5, 1) == emerging(bars, 0.5, 1)).all()
    assert (emerging(bars, 0.5, 1) != emerging(bars, 0.5, 2)).any()
    assert (strip("a", 1, 96, 96) != strip("a", 2, 96, 96)).any()


def test_the_pixels_of_a_picture_are_known_where_both_sides_are() -> None:
    assert BarsParameters(width=100).pixels is None
    assert BarsParameters(width=100, height=64).pixels == 6400
