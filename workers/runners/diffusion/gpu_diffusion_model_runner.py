"""``GPUDiffusionModelRunner``: one batch of a diffusion stage, from noise to output.

A charter: only the run of one batch belongs here. Waiting, batching and threads belong to ``diffusion_runner``, the
device and loading to ``gpu_diffusion_worker``, the arithmetic to the model. There is no KV cache, no sampler and no
attention metadata. The name follows vLLM's family of model runners; the code is the same on CPUs.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

from omni_jobs.errors import EngineDead, ModelError, OutOfMemory, StageError
from workers.runners.diffusion.model import DiffusionBatch, DiffusionModel, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.types import OmniModelRunnerOutput, convert_tensors

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a primitive")


class BatchRow(Protocol):
    """A prompt in a diffusion batch. The thread that runs the batch gives the row its progress and its result."""

    @property
    def prompt(self) -> DiffusionPrompt:
        """The prompt, which the model's ``check`` has accepted."""

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for the result; False for good once ``settle`` was called."""

    def report(self, done: int, total: int) -> None:
        """Take the row's progress: ``done`` of ``total`` steps. The last one is the model's ``finish``."""

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        """Take the row's output, or the error with which this row failed."""


class GPUDiffusionModelRunner:
    """Runs batches of a diffusion model, for ``DiffusionRunner`` and on its thread."""

    def __init__(self, model: DiffusionModel, device: torch.device) -> None:
        self.model = model
        self._device = device

    def execute_model(self, rows: Sequence[BatchRow]) -> None:
        """Run checked prompts of one group as one batch; call ``settle`` for every wanted row.

        When the batch fails, each row is tried once alone. So only a row that cannot run alone gets an error:
        OutOfMemory or ModelError. Raises EngineDead when the device has failed; rows that are left are not settled.
        """
        error = self._try(rows)
        if error is None:
            return
        left = _wanted(rows)
        if len(left) > 1:
            logger.warning("a batch of %d failed, trying each alone: %s", len(left), error)
        for row in left:
            failure = self._try([row]) if len(left) > 1 else error
            if failure is not None:
                row.settle(failure)

    def _try(self, rows: Sequence[BatchRow]) -> StageError | None:
        """Run these rows, and return the error on which they stopped or None."""
        try:
            self._run(rows)
            return None
        except (RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
            failure = _stage_error(error)
        # Here the exception is gone, whose traceback held the batch's tensors.
        if isinstance(failure, OutOfMemory) and self._device.type == "cuda":
            torch.cuda.empty_cache()
        return failure

    @torch.inference_mode()
    def _run(self, rows: Sequence[BatchRow]) -> None:
        batch = self.model.begin([row.prompt for row in rows])
        rows = _take_steps(batch, rows)
        if not rows:
            return
        for number, output in batch.finish(lambda row: rows[row].wanted):
            rows[number].report(batch.steps + 1, batch.steps + 1)
            rows[number].settle(_runner_output(output))


def _take_steps(batch: DiffusionBatch, rows: Sequence[BatchRow]) -> Sequence[BatchRow]:
    """Take all steps of a batch, and return the rows that are still wanted after the last one."""
    while wanted := _wanted(rows):
        if len(wanted) < len(rows):
            batch.keep([rows.index(row) for row in wanted])
            rows = wanted
        if batch.done:
            return rows
        batch.step()
        for row in rows:
            row.report(batch.steps_done, batch.steps + 1)
    return []


def _runner_output(output: RowOutput) -> OmniModelRunnerOutput:
    tensors = convert_tensors(output.tensors, lambda tensor: tensor.to("cpu"))
    return OmniModelRunnerOutput(multimodal_outputs=tensors, values=output.values)


def _wanted(rows: Sequence[BatchRow]) -> list[BatchRow]:
    return [row for row in rows if row.wanted]


def _stage_error(error: RuntimeError | MemoryError) -> StageError:
    """Return the error of the rows that ran. Raises EngineDead when the device failed, on which no row can run."""
    if _is_out_of_memory(error):
        return OutOfMemory(f"no memory for this batch: {error}")
    if isinstance(error, torch.AcceleratorError):
        raise EngineDead(f"the device failed: {error}") from error
    return ModelError(f"the model failed: {error}")


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # torch's CPU allocator, C++'s own and oneDNN raise plain RuntimeErrors.
    return any(words in str(error) for words in _OUT_OF_MEMORY)
