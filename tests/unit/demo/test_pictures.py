"""Pictures in a terminal, and the scenes that are drawn for the demo and the tests."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from omni_jobs.demo.drawn_scenes import SCENES, reduced
from omni_jobs.demo.half_blocks import HalfBlocks
from omni_jobs.demo.picture import PictureDemo, _box, _show
from omni_jobs.demo.walk import Scene
from omni_jobs.errors import ConfigError


def printed(picture: Image.Image) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)
    console.print(HalfBlocks(picture))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("height", [1, 2, 7, 8])
def test_a_character_shows_two_pixels(height: int) -> None:
    pixels = np.random.default_rng(height).integers(0, 256, (height, 5, 3), np.uint8)
    lines = printed(Image.fromarray(pixels))
    assert len(lines) == -(-height // 2)
    for row, line in enumerate(lines):
        cells = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+)(?:;48;2;(\d+);(\d+);(\d+))?m▀", line)
        upper = [[int(value) for value in cell[:3]] for cell in cells]
        assert upper == pixels[2 * row].tolist()
        if 2 * row + 1 < height:
            assert [[int(value) for value in cell[3:]] for cell in cells] == pixels[2 * row + 1].tolist()
        else:
            assert {cell[3:] for cell in cells} == {("", "", "")}  # nothing lies below the last row


def test_ten_scenes_differ_and_are_drawn_the_same_each_time() -> None:
    drawn = [scene().tobytes() for scene in SCENES]
    assert len(set(drawn)) == len(drawn) == 10
    assert [scene().tobytes() for scene in SCENES] == drawn
    truth = SCENES[0]()
    small = np.asarray(reduced(truth, 4), float)
    means = np.asarray(truth, float).reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
    assert np.abs(small - means).max() <= 0.5


@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 30), (256, 256), (80, 100)])
def test_a_detail_lies_within_its_picture(width: int, height: int) -> None:
    left, top, right, bottom = _box((256, 256), width, height)
    assert left >= 0
    assert top >= 0
    assert (right - left, bottom - top) == (width, height)
    assert max(right, bottom) <= 256


def test_a_terminal_without_colours_says_so() -> None:
    console = Console(file=io.StringIO(), width=80)
    picture = Image.new("RGB", (4, 4))
    _show(console, picture, picture, beside=True)
    assert console.file.getvalue() == "(this terminal shows no colours)\n"  # type: ignore[attr-defined]


def test_the_demo_takes_a_picture_of_the_user(tmp_path: Path) -> None:
    nothing: Any = None  # what the demo starts is not needed to read a file
    scene = Scene(nothing, nothing, Console(file=io.StringIO()), tmp_path, tmp_path)
    file = tmp_path / "grey.png"
    Image.new("L", (50, 40), 90).save(file)
    before, truth, sent = PictureDemo(None, file)._picture(scene)
    assert (before.mode, before.size, truth, sent) == ("RGB", (50, 40), None, file)
    file.write_bytes(b"no picture")
    with pytest.raises(ConfigError, match="no picture"):
        PictureDemo(None, file)._picture(scene)
