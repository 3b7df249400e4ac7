"""The picture demo: a small picture becomes four times as large, with real weights."""

import math
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from demo.checkpoints import CACHE
from demo.walk import walking
from omni_jobs.client import user_message
from omni_jobs.errors import ConfigError, StageError

LIGHTHOUSE = Path(__file__).with_name("lighthouse.png")
"""A drawn scene of 256 x 256 pixels. The demo enlarges a small copy of it, and compares."""

FACTOR = 4


def picture_demo(console: Console, out: Path | None, model: Path | None, file: Path) -> None:
    """Enlarge a picture in one job, by the user's networks or Real-ESRGAN's, and put before and after into one file.

    Raises OmniJobsError or TimeoutError; StageError also for a lighthouse that is no better than by bicubic
    interpolation.
    """
    out = out or CACHE / "demo-picture"
    out.mkdir(parents=True, exist_ok=True)
    truth = _rgb(file)
    if file == LIGHTHOUSE:
        file = out / "before.png"
        truth.reduce(FACTOR).save(file)
    before = _rgb(file)
    with walking(console, out, ["upscale"], {} if model is None else {"upscale": model}) as walk:
        walk.title(f"One job over HTTP: {file.name}, {before.width} × {before.height}, to {walk.stack.url}/v1/jobs")
        messages = [user_message(images=[file])]
        image = {"format": "png"}
        request = {"model": "upscale", "messages": messages, "modalities": ["image"], "image": image, "seed": 0}
        walk.show_results(walk.run_job(request))
        after = _rgb(out / "image.png")
        if after.size != (FACTOR * before.width, FACTOR * before.height):
            raise StageError(f"{before.width} × {before.height} pixels became {after.width} × {after.height}")
        both = np.hstack([np.asarray(each) for each in (before.resize(after.size, Image.Resampling.NEAREST), after)])
        Image.fromarray(both).save(out / "before-after.png")
        console.print(f"\nBefore and after: {out / 'before-after.png'}", highlight=False, soft_wrap=True, markup=False)
        if file == out / "before.png" and model is None:
            _compare(console, before.resize(truth.size, Image.Resampling.BICUBIC), after, truth)


def _rgb(file: Path) -> Image.Image:
    """Return the picture in a file. Raises ConfigError."""
    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except OSError as error:
        raise ConfigError(f"no picture: {error}", file=str(file)) from error


def _compare(console: Console, bicubic: Image.Image, ours: Image.Image, truth: Image.Image) -> None:
    """Print how close two results come to the scene as it was drawn. Raises StageError if bicubic comes closer."""
    theirs, found = _psnr(bicubic, truth), _psnr(ours, truth)
    console.print(
        f"To the scene as it was drawn: {found:.1f} dB, where bicubic interpolation comes to {theirs:.1f} dB",
        highlight=False,
        soft_wrap=True,
    )
    if found <= theirs:
        raise StageError("the result is no better than by bicubic interpolation")


def _psnr(picture: Image.Image, truth: Image.Image) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    error = np.mean((np.asarray(picture, np.float64) - np.asarray(truth, np.float64)) ** 2)
    return math.inf if error == 0 else float(10 * np.log10(255**2 / error))
