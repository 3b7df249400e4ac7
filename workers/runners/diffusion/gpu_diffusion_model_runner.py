"""``GPUDiffusionModelRunner``: one batch of a diffusion stage, from noise to output.

A charter: only how a batch runs belongs here. Waiting, batching and threads belong to
``diffusion``, device and loading to ``gpu_diffusion_worker``, arithmetic to the model.
There is no KV cache, no sampler and no attention metadata. "GPU" names the family that
AR runners belong to as well; the code is the same on CPUs.
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
    """Who waits for a batch; called on the thread that runs it, with the row's number in the batch."""

    def wanted(self, row: int) -> bool:
        """Whether anyone still waits for this row; asked between steps, and before the vocoder."""

    def progress(self, row: int, done: int, total: int) -> None:
        """A step is done; the last of ``total`` is the vocoder's."""

    def finished(self, row: int, result: OmniModelRunnerOutput | StageError) -> None:
        """The row has its result, or its own error."""


class GPUDiffusionModelRunner:
    """Runs batches of codec prompts to their waveforms."""

    def __init__(self, model: Token2Wav) -> None:
        self._model = model

    def check(self, prompt: CodecPrompt) -> int:
        """The mel frames this prompt takes. Raises ModelError naming the field that does not fit."""
        self._model.check(prompt.codes, prompt.voice)
        return self._model.frames(prompt.codes)

    def execute_model(self, prompts: Sequence[CodecPrompt], watcher: BatchWatcher) -> None:
        """Run checked prompts of equal parameters as one batch; every wanted row ends in ``watcher.finished``.

        When the batch fails, out of memory or otherwise, each row is tried once alone, so that
        only what cannot run fails: OutOfMemory or ModelError. Raises EngineDead when the device is gone.
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
        """Run these rows; those that finish leave ``open_rows``."""
        try:
            with _exact_float32():
                self._run(prompts, rows, watcher, open_rows)
            return None
        except (RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
            failure = _stage_error(error)
        # Not before the exception is gone: its traceback holds the batch's tensors.
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
        """How many steps there are, and the mels of the rows that are still wanted after the last."""
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
    """Drop the rows nobody waits for any more; the rows that stay."""
    stay = [n for n, row in enumerate(rows) if watcher.wanted(row)]
    if len(stay) == len(rows):
        return rows
    open_rows.difference_update(row for n, row in enumerate(rows) if n not in stay)
    if stay:
        denoising.keep(stay)
    return [rows[n] for n in stay]


def _stage_error(error: RuntimeError | MemoryError) -> StageError:
    """Raises EngineDead when it is the device that failed: no other row can run either."""
    if _is_out_of_memory(error):
        return OutOfMemory(f"no memory for this batch: {error}")
    if isinstance(error, torch.AcceleratorError):
        raise EngineDead(f"the device failed: {error}") from error
    return ModelError(f"the model failed: {error}")


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator, C++ code that allocates by itself and oneDNN come as plain RuntimeErrors.
    return any(words in str(error) for words in _OUT_OF_MEMORY)


@contextmanager
def _exact_float32() -> Iterator[None]:
    """cuDNN's convolutions round to TF32 by default; results then depend on device and batch beyond 1e-5."""
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield
