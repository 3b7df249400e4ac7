"""``GPUDiffusionModelRunner``: one batch of a diffusion stage, from noise to output.

A charter: only the run of one batch belongs here. Waiting, batching and threads belong to ``diffusion_runner``, the
device and loading to ``gpu_diffusion_worker``, the arithmetic to the model. There is no KV cache, no sampler and no
attention metadata. The name follows vLLM's family of model runners; the code is the same on CPUs.
"""

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


class BatchRow(Protocol):
    """A prompt in a diffusion batch. The thread that runs the batch gives the row its progress and its result."""

    @property
    def prompt(self) -> CodecPrompt:
        """The prompt, which ``GPUDiffusionModelRunner.check`` has accepted."""

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for the result; False for good once ``settle`` was called."""

    def report(self, done: int, total: int) -> None:
        """Take the row's progress: ``done`` of ``total`` steps. The last step turns its spectrogram into sound."""

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        """Take the row's output, or the error with which this row failed."""


class GPUDiffusionModelRunner:
    """Turns batches of codec prompts into waveforms, for ``DiffusionRunner`` and on its thread."""

    def __init__(self, model: Token2Wav) -> None:
        self._model = model

    def check(self, prompt: CodecPrompt) -> int:
        """Return how many mel frames this prompt takes. Raises ModelError naming the field that does not fit."""
        self._model.check(prompt.codes, prompt.voice)
        return self._model.frames(prompt.codes)

    def execute_model(self, rows: Sequence[BatchRow]) -> None:
        """Run checked prompts of equal parameters as one batch; call ``settle`` for every wanted row.

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
            with _exact_float32():
                self._run(rows)
            return None
        except (RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
            failure = _stage_error(error)
        # Here the exception is gone, whose traceback held the batch's tensors.
        if isinstance(failure, OutOfMemory) and self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        return failure

    def _run(self, rows: Sequence[BatchRow]) -> None:
        steps, mels = self._denoise(rows)
        for group in self._model.vocoder_groups([len(mel) for _, mel in mels]):
            wanted = [mels[n] for n in group if mels[n][0].wanted]
            waveforms = self._model.vocode([mel for _, mel in wanted]) if wanted else []
            for (row, _), waveform in zip(wanted, waveforms, strict=True):
                row.report(steps + 1, steps + 1)
                outputs, values = {"waveform": waveform}, {"sampling_rate": SAMPLING_RATE}
                row.settle(OmniModelRunnerOutput(multimodal_outputs=outputs, values=values))

    def _denoise(self, rows: Sequence[BatchRow]) -> tuple[int, list[tuple[BatchRow, torch.Tensor]]]:
        """Return the number of steps, and the mels [F, M] of the rows that are still wanted after the last one."""
        prompts = [row.prompt for row in rows]
        requests = [CodecRequest(prompt.codes, prompt.voice, prompt.seed) for prompt in prompts]
        denoising = self._model.denoise(requests, prompts[0].parameters)
        while wanted := _wanted(rows):
            if len(wanted) < len(rows):
                denoising.keep([rows.index(row) for row in wanted])
                rows = wanted
            if denoising.done:
                return denoising.steps, list(zip(rows, denoising.mels(), strict=True))
            denoising.step()
            for row in rows:
                row.report(denoising.steps_done, denoising.steps + 1)
        return denoising.steps, []


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


@contextmanager
def _exact_float32() -> Iterator[None]:
    """Keep cuDNN's convolutions in float32: by default they round to TF32, and results differ by more than 1e-5."""
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield
