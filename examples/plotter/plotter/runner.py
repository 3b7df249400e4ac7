"""``Plotter``: a runner that draws hypotrochoids, as many at once as it has pens."""

import asyncio
import math
from functools import partial

import numpy as np

from omni_jobs.errors import ModelError
from plotter.prompt import PlotterPrompt
from plotter.settings import PlotterEngine
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import WAITING, OmniModelRunnerOutput, Progress

__all__ = ["Plotter"]


class Plotter(InProcessRunner[PlotterPrompt, PlotterEngine]):
    """Draws as many curves at once as it has pens, a chunk of points at a time."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Prepare the pens. Raises ConfigError for settings of another engine."""
        super().__init__(args)
        self._pens = asyncio.Semaphore(self.engine.pens)

    async def produce(self, prompt: PlotterPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return the curve: ``points`` float32 [points, 2], ``title`` and ``count``. Progress is in points.

        Raises ModelError for wheels that cannot roll.
        """
        if prompt.parameters.inner >= prompt.parameters.outer:
            raise ModelError("the inner wheel does not fit into the outer one", field="inner", stage=self.args.stage)
        total, speed = prompt.parameters.points, prompt.parameters.points_per_s
        if self._pens.locked():
            progress(Progress(0, total, WAITING))
        async with self._pens:
            parts = []
            for begin in range(0, total, self.engine.chunk):
                end = min(begin + self.engine.chunk, total)
                parts.append(await self.on_thread(partial(_points, prompt, begin, end)))
                progress(Progress(end, total, "points"))
                if speed is not None:
                    await asyncio.sleep((end - begin) / speed)
        return OmniModelRunnerOutput(
            multimodal_outputs={"points": np.concatenate(parts)}, values={"title": prompt.title, "count": total}
        )


def _points(prompt: PlotterPrompt, begin: int, end: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    """Return points ``begin`` … ``end`` of the closed curve, float32 [end - begin, 2], within -1 … 1."""
    outer, inner, count = prompt.parameters.outer, prompt.parameters.inner, prompt.parameters.points
    pen = np.random.default_rng(prompt.seed).uniform(0.3, 0.9) * inner
    turns = inner // math.gcd(outer, inner)
    angle = np.arange(begin, end) / (count - 1) * turns * 2 * math.pi
    rolled = angle * (outer - inner) / inner
    arm = outer - inner
    x, y = arm * np.cos(angle) + pen * np.cos(rolled), arm * np.sin(angle) - pen * np.sin(rolled)
    return (np.stack([x, y], axis=1) / outer).astype(np.float32)
