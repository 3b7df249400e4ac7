"""``RendererLoads``: a pipeline's tokenizer is loaded on a thread of its own, once for all who wait for it."""

import asyncio

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.prompts import Renderers


class RendererLoads:
    """Loads renderers. For one event loop."""

    def __init__(self, renderers: Renderers, pipelines: Pipelines) -> None:
        self._renderers = renderers
        self._pipelines = pipelines
        self._threads = CapacityLimiter(max(1, len(pipelines)))  # so that no load waits for another pipeline's
        self._loads: dict[str, asyncio.Future[object]] = {}

    async def ready(self, name: str) -> None:
        """Wait until the pipeline's renderer is loaded. Return at once where there is no such pipeline.

        Raises ModelMissing where it cannot be loaded; all who wait for one load share its error.
        """
        pipeline = self._pipelines.get(name)
        if pipeline is None or self._renderers.are_loaded(pipeline):
            return
        load = self._loads.get(name)
        if load is None:
            load_it = run_sync(self._renderers.of, pipeline, limiter=self._threads, abandon_on_cancel=True)
            load = self._loads[name] = asyncio.ensure_future(load_it)
            load.add_done_callback(lambda load: self._forget(name, load))
        await asyncio.shield(load)  # a request that is cancelled takes the load from nobody

    def _forget(self, name: str, load: asyncio.Future[object]) -> None:
        del self._loads[name]
        if not load.cancelled():
            load.exception()  # retrieved, because everyone who waited may have left
