"""``GPUDiffusionModelRunner``: one batch of a diffusion stage, from noise to output.

A charter: only the run of one batch belongs here. Waiting, batching and threads belong to ``diffusion_runner``, the
device and loading to ``gpu_diffusion_worker``, the arithmetic to the model. There is no KV cache, no sampler and no
attention metadata. The name follows vLLM's family of model runners; the code is the same on CPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from omni_jobs.errors import EngineDead, ModelError, OutOfMemory, StageError
from workers.models.qwen2_5_omni.denoising import CodecRequest, Denoising
from workers.models.qwen2_5_omni.token2wav import SAMPLING_RATE, Token2Wav
from workers.stages.types import CodecPrompt, OmniModelRunnerOutput

__all__ = ["BatchWatcher", "GPUDiffusionModelRunner"]

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a primitive")


class BatchWatcher(Protocol):
    """Receives a batch's progress and results, on the thread that runs it; ``row`` is a row's number in the batch."""

    def wanted(self, row: int) -> bool:
        """Return whether anyone still waits for this row; asked between steps, and before the vocoder."""

    def progress(self, row: int, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` steps are done; the last one is the vocoder's."""

    def finished(self, row: int, result: OmniModelRunnerOutput | StageError) -> None:
        """Take the row's output, or its own error."""


class GPUDiffusionModelRunner:
    """Turns batches of codec prompts into waveforms."""

    def __init__(self, model: Token2Wav) -> None:
        self._model = model

    def check(self, prompt: CodecPrompt) -> int:
        """Return the mel frames that this prompt takes. Raises ModelError naming the field that does not fit."""
        self._model.check(prompt.codes, prompt.voice)
        return self._model.frames(prompt.codes)

    def execute_model(self, prompts: Sequence[CodecPrompt], watcher: BatchWatcher) -> None:
        """Run checked prompts of equal parameters as one batch; call ``watcher.finished`` for every wanted row.

        When the batch fails, each row is tried once alone, so that only those rows fail, with OutOfMemory or
        ModelError, that cannot run alone. Raises EngineDead when the device has failed.
        """
        open_rows = set(range(len(prompts)))
        error = self._try(prompts, sorted(open_rows), watcher, open_rows)
        if error is not None and len(open_rows) > 1:
            logger.warning("a batch of %d failed, trying each alone: %s", len(open_rows), error)
            for row in sorted(open_rows):
                alone = self._try(prompts, [row], watcher, open_rows)
                if alone is not None:
                    watcher.finished(row, alone)
        elif error is not None:
            for row in open_rows:
                watcher.finished(row, error)

    def _try(
        self, prompts: Sequence[CodecPrompt], rows: list[int], watcher: BatchWatcher, open_rows: set[int]
    ) -> StageError | None:
        """Run these rows, and return the error on which they stopped or None. Finished rows leave ``open_rows``."""
        try:
            with _exact_float32():
                self._run(prompts, rows, watcher, open_rows)
            return None
        except (RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
            failure = _stage_error(error)
        # Here the exception is gone, whose traceback held the batch's tensors.
        if isinstance(failure, OutOfMemory) and self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        return failure

    def _run(self, prompts: Sequence[CodecPrompt], rows: list[int], watcher: BatchWatcher, open_rows: set[int]) -> None:
        steps, mels = self._denoise(prompts, rows, watcher, open_rows)
        rows = list(mels)
        for group in self._model.vocoder_groups([len(mels[row]) for row in rows]):
            wanted = [rows[n] for n in group if watcher.wanted(rows[n])]
            open_rows.difference_update({rows[n] for n in group} - set(wanted))
            if not wanted:
                continue
            for row, waveform in zip(wanted, self._model.vocode([mels[row] for row in wanted]), strict=True):
                output = OmniModelRunnerOutput(
                    multimodal_outputs={"waveform": waveform}, values={"sampling_rate": SAMPLING_RATE}
                )
                open_rows.discard(row)
                watcher.progress(row, steps + 1, steps + 1)
                watcher.finished(row, output)

    def _denoise(
        self, prompts: Sequence[CodecPrompt], rows: list[int], watcher: BatchWatcher, open_rows: set[int]
    ) -> tuple[int, dict[int, torch.Tensor]]:
        """Return the number of steps, and by row the mels [F, M] of those that are still wanted after the last step."""
        requests = [CodecRequest(prompts[row].codes, prompts[row].voice, prompts[row].seed) for row in rows]
        denoising = self._model.denoise(requests, prompts[rows[0]].parameters)
        while rows := _still_wanted(denoising, rows, watcher, open_rows):
            if denoising.done:
                return denoising.steps, dict(zip(rows, denoising.mels(), strict=True))
            denoising.step()
            for row in rows:
                watcher.progress(row, denoising.steps_done, denoising.steps + 1)
        return denoising.steps, {}


def _still_wanted(denoising: Denoising, rows: list[int], watcher: BatchWatcher, open_rows: set[int]) -> list[int]:
    """Drop the rows for which nobody waits any more; return the others."""
    wanted = [n for n, row in enumerate(rows) if watcher.wanted(row)]
    if len(wanted) == len(rows):
        return rows
    open_rows.difference_update(row for n, row in enumerate(rows) if n not in wanted)
    if wanted:
        denoising.keep(wanted)
    return [rows[n] for n in wanted]


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


@contextmanager
def _exact_float32() -> Iterator[None]:
    """Keep cuDNN's convolutions in float32: by default they round to TF32, and results differ by more than 1e-5."""
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield
