"""``DiffusionRunner``: a diffusion stage's engine. It batches prompts and runs the batches on one thread.

``run`` puts a prompt into the bounded queue, and the thread takes batches out of it (``Batching``). Between denoising
steps the rows that nobody waits for any more leave the batch. The event loop never waits for the model, and the model
uses one group of torch threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError, StageError
from omni_jobs.pipelines.parameters import DiffusionParameters
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.runners.runner import ProgressSink
from workers.stages.devices import Device
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import CodecPrompt, EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["Batching", "DiffusionRunner"]

logger = logging.getLogger(__name__)

# Mel frames, 100 in a second of speech. On a CPU larger batches are no faster, and all their rows wait for the last.
DEFAULT_BATCH_FRAMES: Mapping[Device, int] = {"cpu": 1024, "cuda": 16_384}


class Batchable(Protocol):
    """The properties of a prompt by which ``Batching`` chooses."""

    @property
    def frames(self) -> int:
        """The mel frames that the prompt takes."""

    @property
    def parameters(self) -> DiffusionParameters:
        """The solver's parameters; prompts with other ones never run together."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Chooses the next batch among the waiting prompts; pure."""

    max_frames: int  # of all rows together; a longer prompt runs alone
    max_rows: int
    short_frames: int = 256  # a shorter row costs as much as this one, so all short rows may run together

    def pick(self, waiting: Sequence[Batchable]) -> list[int]:
        """Return the next batch as indices into ``waiting``, whose oldest prompt comes first and is always in it.

        Others join in the order of their age when they have the same parameters, the batch stays within
        ``max_frames``, and no row is more than twice as long as another, so that short ones do not wait for long ones.
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
    """Runs codec prompts, many at once. Implements ``workers.runners.runner.Runner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Prepare; nothing is loaded yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        self._stage = args.stage
        self._worker = GPUDiffusionWorker(args)
        self._batching = Batching(
            max_frames=args.engine.max_batch_frames or DEFAULT_BATCH_FRAMES[args.device],
            max_rows=args.engine.max_num_seqs or args.max_in_flight,
        )
        self._room = asyncio.Semaphore(args.max_in_flight)
        self._changed = threading.Condition()
        self._waiting: list[_Entry] = []  # oldest first; under _changed
        self._dead: str | None = None  # why no more batches run; under _changed
        self._ready = False
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Start the runner's thread and load the model on it. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=self._serve, args=(loop, loaded), name=f"{self._stage}-diffusion", daemon=True
        )
        self._thread.start()
        await loaded
        self._ready = True

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
            entry = _Entry(prompt, frames, progress, asyncio.get_running_loop())
            self._enqueue(entry)
            try:
                return await entry.outcome
            finally:
                self._withdraw(entry)

    async def close(self) -> None:
        """Stop between two steps and free the model; runs in progress raise EngineDead. Safe to call twice."""
        self._stop("the runner was closed")
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)

    @property
    def healthy(self) -> bool:
        """Whether the model is loaded and the thread can run another batch."""
        return self._ready and self._dead is None

    def _enqueue(self, entry: _Entry) -> None:
        with self._changed:
            if self._dead is not None:
                raise EngineDead(self._dead, stage=self._stage)
            self._waiting.append(entry)
        # The thread wakes up one turn of the loop later, so that prompts that come together run together.
        entry.loop.call_soon(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _withdraw(self, entry: _Entry) -> None:
        entry.abandoned = True
        with self._changed:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _stop(self, reason: str) -> None:
        """Run no more batches: waiting prompts raise EngineDead, and the batch that runs ends before its next step."""
        with self._changed:
            self._dead = self._dead or reason
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for entry in waiting:
            entry.settle(EngineDead(self._dead, stage=self._stage))

    # On the runner's thread.

    def _serve(self, loop: asyncio.AbstractEventLoop, loaded: asyncio.Future[None]) -> None:
        try:
            self._worker.load_model()
        except Exception as error:  # noqa: BLE001 - whatever it is, start() raises it
            self._stop(f"the model did not load: {error}")
            loop.call_soon_threadsafe(_fail, loaded, error)
            return
        loop.call_soon_threadsafe(_succeed, loaded)
        try:
            while self._run_next():
                pass
        except Exception as error:
            # The batch's runs have raised it, and ``healthy`` is False from here on.
            logger.exception("%s: the diffusion engine broke", self._stage)
            self._stop(f"the diffusion engine broke: {error}")
        finally:
            self._worker.close()

    def _run_next(self) -> bool:
        """Run the next batch; return False when there is no other.

        A function of its own, because its frame holds the batch and its outputs only while they are needed.
        """
        batch = self._next_batch()
        if batch:
            self._run_batch(batch)
        return bool(batch)

    def _next_batch(self) -> list[_Entry]:
        """Wait for the next batch and return it; an empty one when the runner stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._dead is not None)
            batch = [self._waiting[n] for n in self._batching.pick(self._waiting)]
            self._waiting = [entry for entry in self._waiting if entry not in batch]
            return batch

    def _run_batch(self, batch: list[_Entry]) -> None:
        try:
            self._worker.execute_model([entry.prompt for entry in batch], _BatchRows(self, batch))
        except Exception as error:
            self._stop(str(error))
            raise
        finally:
            for entry in batch:
                if not entry.settled:
                    entry.settle(EngineDead(self._dead, stage=self._stage))

    def is_wanted(self, entry: _Entry) -> bool:
        """Return whether somebody waits for the entry's output and the runner goes on."""
        return self._dead is None and not entry.abandoned


class _Entry:
    """One prompt in the queue or in a batch, and the future of its output."""

    def __init__(
        self, prompt: CodecPrompt, frames: int, progress: ProgressSink, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.prompt = prompt
        self.frames = frames
        self.loop = loop
        self.outcome: asyncio.Future[OmniModelRunnerOutput] = loop.create_future()
        self.abandoned = False  # set by the loop when nobody waits any more, read by the thread
        self.settled = False
        self._progress = progress
        self._reported = 0  # steps; a row that is tried again alone starts over, and its progress does not

    @property
    def parameters(self) -> DiffusionParameters:
        """The prompt's parameters."""
        return self.prompt.parameters

    def report(self, done: int, total: int) -> None:
        """Send progress to the loop, unless it is behind what was sent before."""
        if done > self._reported:
            self._reported = done
            self.loop.call_soon_threadsafe(self._on_progress, Progress(done, total, "steps"))

    def settle(self, result: OmniModelRunnerOutput | OmniJobsError) -> None:
        """Let ``run`` return the output or raise the error; for any thread."""
        self.settled = True
        if isinstance(result, OmniJobsError):
            self.loop.call_soon_threadsafe(_fail, self.outcome, result)
        else:
            self.loop.call_soon_threadsafe(_succeed, self.outcome, result)

    def _on_progress(self, progress: Progress) -> None:
        if not self.outcome.done():
            self._progress(progress)


class _BatchRows:
    """A batch's entries by their row numbers. Implements ``BatchWatcher``."""

    def __init__(self, runner: DiffusionRunner, batch: Sequence[_Entry]) -> None:
        self._runner = runner
        self._batch = batch

    def wanted(self, row: int) -> bool:
        return self._runner.is_wanted(self._batch[row])

    def progress(self, row: int, done: int, total: int) -> None:
        self._batch[row].report(done, total)

    def finished(self, row: int, result: OmniModelRunnerOutput | StageError) -> None:
        self._batch[row].settle(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[Any], result: object = None) -> None:
    if not future.done():
        future.set_result(result)
