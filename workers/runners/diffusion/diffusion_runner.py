"""``DiffusionRunner``: a diffusion stage's engine. It batches prompts and runs the batches on one thread.

``run`` puts a prompt into the bounded queue, and ``Batching`` chooses batches from it. The model runs them on a thread,
so that the event loop never waits for it. A prompt in a batch is a row of it. Between denoising steps the rows whose
callers have stopped waiting leave the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress

logger = logging.getLogger(__name__)


class Batchable(Protocol):
    """A waiting prompt, as ``Batching`` sees it."""

    cost: Cost


@dataclass(frozen=True, slots=True)
class Batching:
    """Chooses a ``DiffusionRunner``'s next batch among the waiting prompts; it has no state and no side effects."""

    max_units: int  # of all rows together; a prompt that takes more runs alone
    max_rows: int

    def pick(self, waiting: Sequence[Batchable]) -> list[int]:
        """Return the next batch as indices into ``waiting``, whose oldest prompt comes first and is always in it.

        Others join in the order of their age when they are of the same group, the batch stays within ``max_units``,
        and no row is more than twice as long as another, so that short ones do not wait for long ones.
        """
        if not waiting:
            return []
        oldest = waiting[0].cost
        picked, units, shortest, longest = [0], oldest.units, oldest.length, oldest.length
        for n, other in enumerate(each.cost for each in waiting[1:]):
            if len(picked) >= self.max_rows:
                break
            low, high = min(shortest, other.length), max(longest, other.length)
            fits = units + other.units <= self.max_units and high <= 2 * low
            if fits and other.group == oldest.group:
                picked.append(n + 1)
                units, shortest, longest = units + other.units, low, high
        return picked


class DiffusionRunner:
    """Runs the prompts of one diffusion model in this process, in batches. Implements ``Runner``."""

    _batching: Batching  # from ``start`` on

    def __init__(self, args: OmniEngineArgs) -> None:
        """Make the runner; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        self._stage = args.stage
        self._worker = GPUDiffusionWorker(args)
        self._max_rows = self._worker.engine.max_num_seqs or args.max_in_flight
        # One thread runs everything of the model, because torch keeps a group of threads for each thread that calls it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{self._stage}-diffusion")
        self._room = asyncio.Semaphore(args.max_in_flight)
        self._waiting: list[_Entry] = []  # the oldest first
        self._changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._dead: str | None = None  # why no more batches run

    async def start(self) -> None:
        """Load the model on the runner's thread. Raises ConfigError when the checkpoint lacks a part of it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._worker.load_model)
        model = self._worker.model_runner.model
        self._batching = Batching(self._worker.engine.max_batch_cost or model.max_batch_cost, self._max_rows)
        self._serving = asyncio.create_task(self._serve())

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt in a batch with others; wait first while the queue is full.

        The output has the model's named tensors as ``multimodal_outputs``, on the CPU, and its values. Raises
        ModelError naming the field that the model cannot take, OutOfMemory when the prompt does not fit even alone,
        and EngineDead when the runner closes or broke.
        """
        if not isinstance(prompt, DiffusionPrompt):
            raise ModelError(f"a diffusion stage takes no {type(prompt).__name__}", field="kind", stage=self._stage)
        cost = self._worker.model_runner.model.check(prompt)
        async with self._room:
            if self._dead is not None:
                raise EngineDead(self._dead, stage=self._stage)
            entry = _Entry(self, prompt, cost, progress)
            self._waiting.append(entry)
            self._changed.set()
            try:
                return await entry.outcome
            finally:
                if entry in self._waiting:
                    self._waiting.remove(entry)

    async def close(self) -> None:
        """Stop between two steps and free the model; runs in progress raise EngineDead. Safe to call twice."""
        self._stop("the runner was closed")
        if self._serving is not None:
            await self._serving
        await asyncio.to_thread(self._thread.shutdown)
        self._worker.close()

    @property
    def healthy(self) -> bool:
        """True while the model is loaded and the runner can run another batch."""
        return self._serving is not None and self._dead is None

    def _stop(self, reason: str) -> None:
        """Run no more batches: waiting prompts raise EngineDead, and the batch that runs ends before its next step."""
        self._dead = self._dead or reason
        self._fail(self._waiting)
        self._changed.set()

    def _fail(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            if not entry.outcome.done():
                entry.outcome.set_exception(EngineDead(self._dead, stage=self._stage))

    async def _serve(self) -> None:
        """Run batches until the runner stops."""
        try:
            while self._dead is None:
                await self._changed.wait()  # prompts that come in one turn of the loop are there when this returns
                self._changed.clear()
                while self._waiting and self._dead is None:
                    await self._run_next()
        except Exception as error:
            # The batch's runs have raised EngineDead, and ``healthy`` is False from here on.
            logger.exception("%s: the diffusion engine broke", self._stage)
            self._stop(f"the diffusion engine broke: {error}")

    async def _run_next(self) -> None:
        """Run the next batch on the runner's thread. The frame of this function alone holds the batch's outputs."""
        batch = [self._waiting[n] for n in self._batching.pick(self._waiting)]
        self._waiting = [entry for entry in self._waiting if entry not in batch]
        try:
            execute_model = self._worker.model_runner.execute_model
            await asyncio.get_running_loop().run_in_executor(self._thread, execute_model, batch)
        except Exception as error:
            self._stop(str(error))
            raise
        finally:
            self._fail(batch)


class _Entry:
    """One prompt in the queue or in a batch, and the future of its output. Implements ``BatchRow``."""

    def __init__(self, runner: DiffusionRunner, prompt: DiffusionPrompt, cost: Cost, progress: ProgressSink) -> None:
        self._runner = runner
        self.prompt = prompt
        self.cost = cost
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[OmniModelRunnerOutput] = self._loop.create_future()
        self._progress = progress
        self._reported = 0  # steps; a row that is tried again alone starts over, and its progress does not
        self._settled = False

    @property
    def wanted(self) -> bool:
        return self._runner.healthy and not self._settled and not self.outcome.done()

    def report(self, done: int, total: int) -> None:
        """Send progress to the loop, unless it is behind what was sent before; for any thread."""
        if done > self._reported:
            self._reported = done
            self._loop.call_soon_threadsafe(self._on_progress, Progress(done, total, "steps"))

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
