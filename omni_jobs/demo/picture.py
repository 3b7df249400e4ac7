"""The picture demo: a small picture becomes four times as large, with real weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.columns import Columns
from rich.console import Console, Group, RenderableType

from omni_jobs.client import user_message
from omni_jobs.demo.drawn_scenes import lighthouse, reduced
from omni_jobs.demo.half_blocks import HalfBlocks
from omni_jobs.demo.walk import Scene
from omni_jobs.errors import ConfigError, StageError

if TYPE_CHECKING:
    from omni_jobs.views import JobView

PIPELINE = "upscale"
FACTOR = 4
COMPARISON = "before-after.png"
"""The file with both pictures beside each other, the small one in blocks of ``FACTOR`` x ``FACTOR``."""

_DETAIL = (0.27, 0.79)  # the middle of the detail that a terminal has room for, in parts of width and height: the sign
_GAP = 2  # columns between two pictures


class PictureDemo:
    """The demo of a picture that is enlarged: a scene of our own, or the user's file."""

    pipelines: Sequence[str] = (PIPELINE,)
    out = "demo-picture"

    def __init__(self, model: Path | None, file: Path | None) -> None:
        """``file``: the picture to enlarge; None draws a scene. ``model``: a directory of networks."""
        self._model = model
        self._file = file

    def models(self, console: Console) -> dict[str, Path]:
        """Return the user's directory; Real-ESRGAN's networks are in an installed package."""
        return {} if self._model is None else {PIPELINE: self._model}

    def run(self, scene: Scene) -> None:
        """Enlarge the picture in one job, and show it before and after.

        Raises StageError for a result of another size, and for one of the drawn scene that is no better than by bicubic
        interpolation.
        """
        scene.out.mkdir(parents=True, exist_ok=True)
        before, truth, file = self._picture(scene)
        scene.title(f"The picture: {before.width} × {before.height} pixels")
        _show(scene.console, before, before)
        scene.title(f"One job over HTTP: {file.name} to {scene.stack.url}/v1/jobs")
        job = scene.run_job(_request(file))
        scene.show_results(job)
        after = _result(job, scene.out)
        if after.size != (FACTOR * before.width, FACTOR * before.height):
            raise StageError(f"{before.width} × {before.height} pixels became {after.width} × {after.height}")
        scene.title(f"Before, and after: {after.width} × {after.height} pixels")
        blocks = before.resize(after.size, Image.Resampling.NEAREST)
        _show(scene.console, blocks, after, beside=True)
        _save_comparison(blocks, after, scene.out / COMPARISON)
        scene.console.print(f"{scene.out / COMPARISON}", highlight=False, soft_wrap=True)
        if truth is not None and self._model is None:
            _compare(scene.console, before, after, truth)

    def _picture(self, scene: Scene) -> tuple[Image.Image, Image.Image | None, Path]:
        """Return the picture as RGB, the large one that it was made of if it is drawn, and its file."""
        if self._file is None:
            truth = lighthouse()
            file = scene.out / "before.png"
            before = reduced(truth, FACTOR)
            before.save(file)
            return before, truth, file
        try:
            with Image.open(self._file) as opened:
                return opened.convert("RGB"), None, self._file
        except OSError as error:
            raise ConfigError(f"no picture: {error}", file=str(self._file)) from error


def _request(file: Path) -> dict[str, Any]:
    return {
        "model": PIPELINE,
        "messages": [user_message(images=[file])],
        "modalities": ["image"],
        "image": {"format": "png"},
        "seed": 0,
    }


def _result(job: JobView, directory: Path) -> Image.Image:
    """Return the picture that a job made, whose file is in ``directory``. Raises StageError."""
    name = next((artifact.name for artifact in job.artifacts if artifact.media_type.startswith("image/")), None)
    if name is None:
        raise StageError("the job has no picture")
    try:
        with Image.open(directory / name) as opened:
            return opened.convert("RGB")
    except OSError as error:
        raise StageError(f"{name} cannot be read: {error}") from error


def _show(console: Console, first: Image.Image, second: Image.Image, *, beside: bool = False) -> None:
    """Print a picture, or with ``beside`` two of one size, or as much of them as fits around the detail.

    Two stand beside each other where the terminal is wide enough for a good part of them, else below each other.
    """
    if console.color_system is None:
        console.print("(this terminal shows no colours)", highlight=False)
        return
    half = (console.width - _GAP) // 2
    side = half if beside and half >= 64 else console.width
    box = _box(first.size, min(side, first.width), min(side, first.height))
    shown: list[RenderableType] = [
        HalfBlocks(picture.crop(box)) for picture in ([first, second] if beside else [first])
    ]
    console.print(Columns(shown, padding=(0, _GAP)) if side == half else Group(*shown))


def _box(size: tuple[int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """Return the rectangle of this width and height around the detail of a picture, moved until it lies within."""
    left, top = (
        min(max(0, round(length * at) - part // 2), length - part)
        for length, part, at in zip(size, (width, height), _DETAIL, strict=True)
    )
    return left, top, left + width, top + height


def _save_comparison(before: Image.Image, after: Image.Image, file: Path) -> None:
    both = Image.new("RGB", (before.width + after.width, after.height))
    both.paste(before, (0, 0))
    both.paste(after, (before.width, 0))
    both.save(file)


def _compare(console: Console, before: Image.Image, after: Image.Image, truth: Image.Image) -> None:
    """Print how close the result comes to the scene as it was drawn. Raises StageError if bicubic comes closer."""
    bicubic = before.resize(truth.size, Image.Resampling.BICUBIC)
    ours, theirs = _psnr(after, truth), _psnr(bicubic, truth)
    console.print(
        f"To the scene as it was drawn: {ours:.1f} dB, where bicubic interpolation comes to {theirs:.1f} dB",
        highlight=False,
    )
    if ours <= theirs:
        raise StageError("the result is no better than by bicubic interpolation")


def _psnr(picture: Image.Image, truth: Image.Image) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    error = np.mean((np.asarray(picture, np.float64) - np.asarray(truth, np.float64)) ** 2)
    return math.inf if error == 0 else float(10 * np.log10(255**2 / error))
