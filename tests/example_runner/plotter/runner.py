"""``Plotter``: a runner that draws hypotrochoids, as many at once as it has pens."""

import asyncio
import math

import numpy as np

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from plotter.prompt import PlotterPrompt
from plotter.settings import PlotterEngine
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import WAITING, EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["Plotter"]


class Plotter:
    """Implements ``Runner`` of ``workers.runners.runner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Prepare the pens. Raises ConfigError for settings of another engine."""
        if not isinstance(args.engine, PlotterEngine):
            raise ConfigError("no settings of a plotter", field="engine", stage=args.stage)
        self._stage = args.stage
        self._chunk = args.engine.chunk
        self._pens = asyncio.Semaphore(args.engine.pens)
        self._running: set[asyncio.Task[OmniModelRunnerOutput]] = set()
        self._open = False

    async def start(self) -> None:
        """Open the plotter."""
        self._open = True

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return the curve: ``points`` float32 [points, 2], ``title`` and ``count``. Progress is in points.

        Raises ModelError for wheels that cannot roll or a prompt of another runner, and EngineDead once it is closed.
        """
        if not isinstance(prompt, PlotterPrompt):
            raise ModelError(f"a plotter takes no {type(prompt).__name__}", field="kind", stage=self._stage)
        if prompt.parameters.inner >= prompt.parameters.outer:
            raise ModelError("the inner wheel does not fit into the outer one", field="inner", stage=self._stage)
        if not self._open:
            raise EngineDead("the plotter is closed", stage=self._stage)
        task = asyncio.ensure_future(self._draw(prompt, progress))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._open or not task.cancelled():
                raise
            raise EngineDead("the plotter was closed", stage=self._stage) from None
        finally:
            task.cancel()

    async def _draw(self, prompt: PlotterPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        total, speed = prompt.parameters.points, prompt.parameters.points_per_s
        if self._pens.locked():
            progress(Progress(0, total, WAITING))
        async with self._pens:
            parts = []
            for begin in range(0, total, self._chunk):
                end = min(begin + self._chunk, total)
                parts.append(await asyncio.to_thread(_points, prompt, begin, end))
                progress(Progress(end, total, "points"))
                if speed is not None:
                    await asyncio.sleep((end - begin) / speed)
        return OmniModelRunnerOutput(
            multimodal_outputs={"points": np.concatenate(parts)}, values={"title": prompt.title, "count": total}
        )

    async def close(self) -> None:
        """End what is drawn; safe to call twice."""
        self._open = False
        for task in self._running:
            task.cancel()

    @property
    def healthy(self) -> bool:
        return self._open


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
