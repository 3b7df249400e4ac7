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
from workers.models.qwen2_5_omni.denoising import CodecRequest
from workers.models.qwen2_5_omni.token2wav import SAMPLING_RATE, Token2Wav
from workers.stages.types import CodecPrompt, OmniModelRunnerOutput

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a primitive")


class BatchWatcher(Protocol):
    """Receives a batch's progress and results, on the thread that runs it; ``row`` is a row's number in the batch."""

    def wanted(self, row: int) -> bool:
        """Return whether anyone still waits for this row; asked between steps, and before the vocoder."""

    def progress(self, row: int, done: int, total: int) -> None:
        """Receive that ``done`` of the row's ``total`` steps are done. The last turns its spectrogram into sound."""

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
        batch = _Batch(prompts, watcher)
        error = self._try(batch, sorted(batch.open))
        if error is not None and len(batch.open) > 1:
            logger.warning("a batch of %d failed, trying each alone: %s", len(batch.open), error)
            for row in sorted(batch.open):
                alone = self._try(batch, [row])
                if alone is not None:
                    batch.finish(row, alone)
        elif error is not None:
            for row in sorted(batch.open):
                batch.finish(row, error)

    def _try(self, batch: _Batch, rows: list[int]) -> StageError | None:
        """Run these rows, and return the error on which they stopped or None."""
        try:
            with _exact_float32():
                self._run(batch, rows)
            return None
        except (RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
            failure = _stage_error(error)
        # Here the exception is gone, whose traceback held the batch's tensors.
        if isinstance(failure, OutOfMemory) and self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        return failure

    def _run(self, batch: _Batch, rows: list[int]) -> None:
        steps, mels = self._denoise(batch, rows)
        rows = list(mels)
        for group in self._model.vocoder_groups([len(mels[row]) for row in rows]):
            wanted = batch.wanted([rows[n] for n in group])
            waveforms = self._model.vocode([mels[row] for row in wanted]) if wanted else []
            for row, waveform in zip(wanted, waveforms, strict=True):
                batch.watcher.progress(row, steps + 1, steps + 1)
                outputs, values = {"waveform": waveform}, {"sampling_rate": SAMPLING_RATE}
                batch.finish(row, OmniModelRunnerOutput(multimodal_outputs=outputs, values=values))

    def _denoise(self, batch: _Batch, rows: list[int]) -> tuple[int, dict[int, torch.Tensor]]:
        """Return the number of steps, and by row the mels [F, M] of those that are still wanted after the last step."""
        prompts = [batch.prompts[row] for row in rows]
        requests = [CodecRequest(prompt.codes, prompt.voice, prompt.seed) for prompt in prompts]
        denoising = self._model.denoise(requests, prompts[0].parameters)
        while wanted := batch.wanted(rows):
            if len(wanted) < len(rows):
                denoising.keep([rows.index(row) for row in wanted])
                rows = wanted
            if denoising.done:
                return denoising.steps, dict(zip(rows, denoising.mels(), strict=True))
            denoising.step()
            for row in rows:
                batch.watcher.progress(row, denoising.steps_done, denoising.steps + 1)
        return denoising.steps, {}


class _Batch:
    """A batch that runs: its prompts, its watcher, and which rows are open, neither finished nor given up."""

    def __init__(self, prompts: Sequence[CodecPrompt], watcher: BatchWatcher) -> None:
        self.prompts = prompts
        self.watcher = watcher
        self.open = set(range(len(prompts)))

    def wanted(self, rows: list[int]) -> list[int]:
        """Return those of the rows for which anyone still waits; give up the others."""
        wanted = [row for row in rows if self.watcher.wanted(row)]
        self.open -= {*rows} - {*wanted}
        return wanted

    def finish(self, row: int, result: OmniModelRunnerOutput | StageError) -> None:
        """Close the row with its output or error."""
        self.open.discard(row)
        self.watcher.finished(row, result)


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
