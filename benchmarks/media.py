"""What the wall costs: media decoded in a process of their own, against the same in a thread of this one.

    python -m benchmarks.media --json FILE [--rounds 200] [--quick]

In each round a medium is decoded once in a thread and once behind the wall, in turns; of the differences
stands the median. A PNG of noise is as large as its pixels: the most there is to hand over. ``probe`` is
what a submit does (its header, and then all of it, nothing given back), ``decode`` what a worker does.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.media.audio import decode_audio
from omni_jobs.media.image import decode_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.wall import MediaWall
from omni_jobs.settings import Settings

_MOST_MORE_MS = 5.0
_LEAST_MS = 0.01  # less cannot be told from nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=200, help="default 200")
    parser.add_argument("--quick", action="store_true", help="few rounds: whether it works")
    arguments = parser.parse_args()
    rounds = 10 if arguments.quick else arguments.rounds
    settings = Settings()
    limits = MediaLimits.of(settings)
    smooth, noise, clip = _png(_gradient()), _png(_noise()), _wav()
    figures: list[Figure] = []
    with MediaWall(settings) as wall, ThreadPoolExecutor(1) as thread, Progress() as progress:
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "PNG of 1 megapixel, decode": (lambda: decode_image(smooth, limits), lambda: wall.decode_image(smooth)),
            "PNG of 1 megapixel of noise, decode": (
                lambda: decode_image(noise, limits),
                lambda: wall.decode_image(noise),
            ),
            "PNG of 1 megapixel, probe": (
                lambda: probe_image(smooth, limits),
                lambda: _probed(wall, smooth),
            ),
            "WAV of 10 s, decode": (
                lambda: decode_audio(clip, 16_000, limits),
                lambda: wall.decode_audio(clip, 16_000),
            ),
        }
        started = time.perf_counter()
        _probed(wall, smooth)
        figures.append(figure("first medium, with the start of the decoders", "s", [time.perf_counter() - started]))
        bar = progress.add_task("rounds", total=rounds * len(pairs))
        for name, (here, behind) in pairs.items():
            in_thread, in_wall = [], []
            for _ in range(rounds):
                in_thread.append(_timed(lambda here=here: thread.submit(here).result()))  # type: ignore[misc]
                in_wall.append(_timed(behind))
                progress.advance(bar)
            more = [max(statistics.median(in_wall) - statistics.median(in_thread), _LEAST_MS)]
            at_most = _MOST_MORE_MS if name.startswith("PNG") else None
            figures += [
                figure(f"{name}: thread", "ms", in_thread),
                figure(f"{name}: wall", "ms", in_wall),
                figure(f"{name}: wall more", "ms", more, at_most=at_most),
            ]
    report(figures, arguments.json)


def _probed(wall: MediaWall, data: bytes) -> None:
    budget = wall.budget()
    wall.header("image", data, budget)
    wall.probe("image", data, budget)


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def _gradient() -> np.ndarray[Any, Any]:
    ramp = np.linspace(0, 255, 1_000)
    grey = (ramp[:, None] + ramp[None, :]) / 2
    return np.stack([grey, 255 - grey, ramp[None, :].repeat(1_000, axis=0)], axis=2).astype(np.uint8)


def _noise() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (1_000, 1_000, 3), np.uint8)


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(480_000) / 20), 48_000, format="WAV")
    return file.getvalue()


if __name__ == "__main__":
    main()
