"""``DiffusionRunner``: a diffusion stage's engine. It batches prompts and runs the batches on one thread.

``run`` puts a prompt into the bounded queue, and ``Batching`` chooses batches from it. The model runs them on a thread,
so that the event loop never waits for it. A prompt in a batch is a row of it. Between denoising steps the rows whose
callers have stopped waiting leave the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from omni_jobs.pipelines.parameters import DiffusionParameters
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.runners.runner import ProgressSink
from workers.stages.devices import Device
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import CodecPrompt, EnginePrompt, OmniModelRunnerOutput, Progress

logger = logging.getLogger(__name__)

# Mel frames, 100 in a second of speech. On a CPU larger batches are no faster, and all their rows wait for the last.
DEFAULT_BATCH_FRAMES: Mapping[Device, int] = {"cpu": 1024, "cuda": 16_384}


class Batchable(Protocol):
    """A waiting prompt, as ``Batching`` sees it."""

    frames: int  # the mel frames that the prompt takes
    parameters: DiffusionParameters  # the solver's; prompts with other ones never run together


@dataclass(frozen=True, slots=True)
class Batching:
    """Chooses a ``DiffusionRunner``'s next batch among the waiting prompts; it has no state and no side effects."""

    max_frames: int  # of all rows together; a longer prompt runs alone
    max_rows: int
    short_frames: int = 256  # a shorter row costs as much as this one, so all short rows may run together

    def pick(self, waiting: Sequence[Batchable]) -> list[int]:
        """Return the next batch as indices into ``waiting``, whose oldest prompt comes first and is always in it.

        Others join in the order of their age when they have the same parameters, the batch stays within
        ``max_frames``, and no row is more than twice as long as another, so that short ones do not wait for long ones.
        In the comparison of lengths, a row shorter than ``short_frames`` counts as that long.
        """
        if not waiting:
            return []
        oldest = waiting[0]
        picked, frames, shortest, longest = [0], oldest.frames, oldest.frames, oldest.frames
        for n, other in enumerate(waiting[1:], start=1):
            if len(picked) >= self.max_rows:
                break
            low, high = min(shortest, other.frames), max(longest, other.frames)
            fits = frames + other.frames <= self.max_frames and self._cost(high) <= 2 * self._cost(low)
            if fits and other.parameters == oldest.parameters:
                picked.append(n)
                frames, shortest, longest = frames + other.frames, low, high
        return picked

    def _cost(self, frames: int) -> int:
        return max(frames, self.short_frames)


class DiffusionRunner:
    """Turns codec prompts into speech in this process, in batches. Implements ``workers.runners.runner.Runner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Make the runner; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        self._stage = args.stage
        self._worker = GPUDiffusionWorker(args)
        self._batching = Batching(
            max_frames=args.engine.max_batch_frames or DEFAULT_BATCH_FRAMES[args.device],
            max_rows=args.engine.max_num_seqs or args.max_in_flight,
        )
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
        self._serving = asyncio.create_task(self._serve())

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Turn codes into speech; wait first while the queue is full.

        Return ``multimodal_outputs["waveform"]``, float32 [S] on the CPU, and ``values["sampling_rate"]`` in Hz.
        Raises ModelError naming the field that the model cannot take, OutOfMemory when the prompt does not fit even
        alone, and EngineDead when the runner closes or broke.
        """
        if not isinstance(prompt, CodecPrompt):
            raise ModelError(f"a diffusion stage takes codes, not {type(prompt).__name__}", stage=self._stage)
        frames = self._worker.model_runner.check(prompt)
        async with self._room:
            if self._dead is not None:
                raise EngineDead(self._dead, stage=self._stage)
            entry = _Entry(self, prompt, frames, progress)
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

    def __init__(self, runner: DiffusionRunner, prompt: CodecPrompt, frames: int, progress: ProgressSink) -> None:
        self._runner = runner
        self.prompt = prompt
        self.parameters = prompt.parameters
        self.frames = frames
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
