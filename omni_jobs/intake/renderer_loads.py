"""Renderers on their way: a thread of its own loads a pipeline's tokenizer, once for all who wait for it."""

from __future__ import annotations

import asyncio

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts import Renderers

__all__ = ["RendererLoads"]


class RendererLoads:
    """Of one event loop."""

    def __init__(self, renderers: Renderers, pipelines: Pipelines) -> None:
        self._renderers = renderers
        self._pipelines = pipelines
        self._slots = CapacityLimiter(max(1, len(pipelines)))  # a load waits for no other pipeline's
        self._loads: dict[str, asyncio.Future[None]] = {}

    async def ready(self, name: str) -> None:
        """Wait until the pipeline's renderer is loaded; at once where there is no such pipeline.

        Raises ModelMissing where it cannot be loaded: those who waited for the load share its error.
        """
        pipeline = self._pipelines.get(name)
        if pipeline is None or self._renderers.are_loaded(pipeline):
            return
        load = self._loads.get(name)
        if load is None:
            load = asyncio.ensure_future(run_sync(self._load, pipeline, limiter=self._slots, abandon_on_cancel=True))
            self._loads[name] = load
            load.add_done_callback(lambda load: self._forget(name, load))
        await asyncio.shield(load)  # one who leaves takes it from nobody

    def _load(self, pipeline: Pipeline) -> None:
        self._renderers.of(pipeline)

    def _forget(self, name: str, load: asyncio.Future[None]) -> None:
        del self._loads[name]
        if not load.cancelled():
            load.exception()  # is looked at, where everyone who waited has left
