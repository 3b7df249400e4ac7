"""``DiffusionRunner``: a diffusion stage's engine. It takes the steps of many prompts together, on one thread.

``run`` gives a prompt to the model runner as a row, and waits first while there are as many as the stage has slots.
The model takes its steps on a thread, so that the event loop never waits for it. A row takes part from the next step
on, and leaves between two steps, when its steps are taken or when its caller has stopped waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from workers.runners.cancellation import settled
from workers.runners.contained import Contained
from workers.runners.diffusion.gpu_diffusion_model_runner import RowCaller
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.ranks import Ranks
from workers.runners.diffusion.snapshot_origin import snapshot_origin
from workers.runners.runner import CURRENT_RUN, ProgressSink, Snapshots
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress, Snapshot

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class DiffusionRunner:
    """Runs prompts of one diffusion model in this process, step by step together. Implements ``ResumableRunner``."""

    def __init__(
        self,
        args: OmniEngineArgs,
        on_computing: Callable[[frozenset[int]], None] = lambda computing: None,
        on_dead: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Make the runner; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs.

        ``on_computing`` is called on the event loop with the stage runs whose steps are taken from now on,
        ``on_dead`` with the reason when the runner breaks.
        """
        self._args = args
        self._stage = args.stage
        self._worker = GPUDiffusionWorker(args)
        # One thread runs everything of the model, because torch keeps a group of threads for each thread that calls it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{self._stage}-diffusion")
        self._room = asyncio.Semaphore(args.max_in_flight)
        self._entries: set[_Entry] = set()
        self._leaving: list[asyncio.Future[None]] = []  # of cancelled runs, whose rows the thread is to drop
        self._on_computing = on_computing
        self._on_dead = on_dead
        self._watching: asyncio.Task[None] | None = None  # the engine's second device
        self._added = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._dead: str | None = None  # why no more steps are taken

    async def start(self) -> None:
        """Load the model on the runner's thread. Raises ConfigError when the checkpoint lacks a part of it."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._worker.load_model)
        except BaseException:
            self._worker.close()
            raise
        if (ranks := self._worker.ranks) is not None:
            self._watching = asyncio.create_task(self._watch(ranks))

        def on_step(callers: Sequence[RowCaller]) -> None:
            computing = frozenset(entry.stage_run for entry in callers if isinstance(entry, _Entry))
            loop.call_soon_threadsafe(self._on_computing, computing)

        self._worker.model_runner.on_step = on_step
        self._serving = asyncio.create_task(self._serve())

    @property
    def snapshot_origin(self) -> Mapping[str, Any] | None:
        return snapshot_origin(self._args) if self.healthy and self._worker.is_resumable else None

    async def run(
        self, prompt: EnginePrompt, progress: ProgressSink, snapshots: Snapshots | None = None
    ) -> OmniModelRunnerOutput:
        """Run one prompt together with others; wait first while there are as many as the stage has slots.

        The output has the model's named tensors as ``multimodal_outputs``, on the CPU, and its values. Raises
        ModelError naming the field that the model cannot take, OutOfMemory when the prompt does not fit even alone,
        and EngineDead when the runner closes or broke.
        """
        if not isinstance(prompt, DiffusionPrompt):
            raise ModelError(f"a diffusion stage takes no {type(prompt).__name__}", field="kind", stage=self._stage)
        with Contained():
            cost = self._worker.model_runner.model.check(prompt)
        async with self._room:
            if self._dead is not None:
                raise EngineDead(self._dead, stage=self._stage)
            entry = _Entry(self, prompt, cost, progress, snapshots)
            self._entries.add(entry)
            self._worker.model_runner.add(entry)
            self._added.set()
            try:
                return await entry.outcome
            except asyncio.CancelledError:
                await self._dropped()
                raise
            finally:
                self._entries.remove(entry)

    async def _dropped(self) -> None:
        """Return once the thread is between two steps, where it drops the rows for which nobody waits."""
        if self._dead is None:
            leaving = asyncio.get_running_loop().create_future()
            self._leaving.append(leaving)
            self._added.set()
            await settled(leaving)

    async def close(self) -> None:
        """Stop between two steps and free the model; runs in progress raise EngineDead. Safe to call twice."""
        self._on_dead = lambda reason: None
        self._stop("the runner was closed")
        if self._serving is not None:
            await self._serving
        await asyncio.to_thread(self._thread.shutdown)
        self._worker.close()
        if self._watching is not None:
            await self._watching

    async def _watch(self, ranks: Ranks) -> None:
        """Stop when the process of the second device ends."""
        self._stop(await asyncio.to_thread(ranks.wait))

    @property
    def healthy(self) -> bool:
        """True while the model is loaded and the runner can take another step."""
        return self._serving is not None and self._dead is None

    def _stop(self, reason: str) -> None:
        """Take no more steps: runs in progress raise EngineDead, and the step that runs now is the last."""
        if self._dead is None:
            self._dead = reason
            self._on_dead(reason)
        for entry in self._entries:
            if not entry.outcome.done():
                entry.outcome.set_exception(EngineDead(self._dead, stage=self._stage))
        self._added.set()
        self._let_go()

    async def _serve(self) -> None:
        """Take steps on the runner's thread whenever there are rows, until the runner stops."""
        try:
            while self._dead is None:
                await self._added.wait()  # prompts that come in one turn of the loop are there when this returns
                self._added.clear()
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._take_all_steps, loop)
        except Exception as error:
            # From here on ``healthy`` is False.
            logger.exception("%s: the diffusion engine broke", self._stage)
            self._stop(f"the diffusion engine broke: {error}")

    def _take_all_steps(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take steps until no row is left."""
        are_left = True
        while are_left:
            are_left = self._worker.model_runner.execute_model()
            if self._leaving:
                loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        """Let the cancelled runs end."""
        for leaving in self._leaving:
            leaving.set_result(None)
        self._leaving.clear()


class _Entry:
    """One prompt in the engine, and the future of its output. Implements ``RowCaller``."""

    def __init__(
        self,
        runner: DiffusionRunner,
        prompt: DiffusionPrompt[Any],
        cost: Cost,
        progress: ProgressSink,
        snapshots: Snapshots | None,
    ) -> None:
        self._runner = runner
        self.stage_run = CURRENT_RUN.get()
        self.prompt = prompt
        self.cost = cost
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[OmniModelRunnerOutput] = self._loop.create_future()
        self._progress = progress
        self.snapshots = None if snapshots is None else _SnapshotsOnThread(snapshots, self._loop)
        self._settled = False
        self._last = Progress(0, cost.steps + 1, "steps")

    @property
    def wanted(self) -> bool:
        return self._runner.healthy and not self._settled and not self.outcome.done()

    def report(self, done: int, total: int) -> None:
        """Send progress to the loop; for any thread."""
        newest = None if self.snapshots is None else self.snapshots.newest
        resumed_at = None if newest is None else newest.steps_done
        self._send(replace(self._last, done=done, total=total, resumed_at=resumed_at))

    def show(self, picture: torch.Tensor) -> None:
        """Send a preview to the loop, with this progress and each that follows; for any thread."""
        self._send(replace(self._last, picture=picture))

    def _send(self, progress: Progress) -> None:
        self._last = progress
        self._loop.call_soon_threadsafe(self._on_progress, progress)

    def settle(self, result: OmniModelRunnerOutput | OmniJobsError) -> None:
        """Let ``run`` return the output or raise the error; for any thread."""
        self._settled = True
        self._loop.call_soon_threadsafe(self._on_result, result)

    def _on_progress(self, progress: Progress) -> None:
        if not self.outcome.done():
            self._progress(progress)

    def _on_result(self, result: OmniModelRunnerOutput | OmniJobsError) -> None:
        if self.outcome.done():
            return
        if isinstance(result, OmniJobsError):
            self.outcome.set_exception(result)
        else:
            self.outcome.set_result(result)


class _SnapshotsOnThread:
    """Snapshots of the loop for the thread that runs the model. Implements ``Snapshots``."""

    def __init__(self, snapshots: Snapshots, loop: asyncio.AbstractEventLoop) -> None:
        self._snapshots = snapshots
        self._loop = loop
        self.newest = snapshots.newest

    def put(self, snapshot: Snapshot) -> None:
        self._loop.call_soon_threadsafe(self._snapshots.put, snapshot)

    def refuse(self, error: OmniJobsError) -> None:
        self.newest = None
        self._loop.call_soon_threadsafe(self._snapshots.refuse, error)

    def miss(self, error: OmniJobsError) -> None:
        self._loop.call_soon_threadsafe(self._snapshots.miss, error)
