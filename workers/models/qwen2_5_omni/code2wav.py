"""``Code2Wav``: Qwen2.5-Omni's code2wav as a diffusion model: codes → mel (steps) → waveform (finish)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from omni_jobs.errors import ModelError
from workers.models.exact_float32 import exact_float32
from workers.models.qwen2_5_omni.denoising import CodecRequest, MelRow
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import SAMPLING_RATE, Token2Wav, load_token2wav
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import TensorTree

# Mel frames, 100 in a second of speech. On a CPU larger steps take longer in proportion, and a short row waits for all.
_MAX_STEP_FRAMES: Mapping[str, int] = {"cpu": 256, "cuda": 16_384}
_SAVED_BY = "code2wav 1"  # raised when a saved row comes to mean something else


def load_code2wav(model: OmniModelConfig, device: torch.device, dtype: str | None) -> "Code2Wav":
    """Return the code2wav of a checkpoint, which runs in float32. Raises ConfigError naming a part that is wrong."""
    del dtype  # the declaration allows no other
    return Code2Wav(load_token2wav(model.path, device, voices=model.voices))


class Code2Wav:
    """A ``ResumableModel``. A prompt has a tensor ``codes`` int64 [N] without end tokens, and a value ``voice``."""

    def __init__(self, token2wav: Token2Wav) -> None:
        self.token2wav = token2wav
        self.max_batch_cost = _MAX_STEP_FRAMES[token2wav.device.type]

    def check(self, prompt: DiffusionPrompt[OdeParameters]) -> Cost:
        """Return the mel frames that the prompt takes. Raises ModelError naming the field that does not fit."""
        request, parameters = _request(prompt), prompt.parameters
        self.token2wav.check(request.codes, request.voice)
        return Cost(self.token2wav.frames(request.codes), parameters.steps - 1, None)

    def begin(self, prompt: DiffusionPrompt[OdeParameters]) -> MelRow:
        """Return the row of a prompt."""
        return self.token2wav.begin(_request(prompt), prompt.parameters)

    def step(self, rows: Sequence[MelRow]) -> None:
        """Take one step of each row's solver."""
        with exact_float32():
            self.token2wav.denoiser.step(rows)

    def finish(self, rows: Sequence[MelRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``waveform`` float32 [S], and its ``sampling_rate`` in Hz."""
        for group in self.token2wav.vocoder_groups([len(row.mel) for row in rows]):
            numbers = [number for number in group if wanted(number)]
            with exact_float32():
                waveforms = self.token2wav.vocode([rows[number].mel for number in numbers]) if numbers else []
            for number, waveform in zip(numbers, waveforms, strict=True):
                yield number, RowOutput({"waveform": waveform}, {"sampling_rate": SAMPLING_RATE})

    def save(self, row: MelRow) -> RowOutput:
        """Return the row's ``mel`` float32 [T, mel] as it is between two steps."""
        mel = row.mel.to("cpu", copy=True)
        return RowOutput({"mel": mel}, {"steps_done": row.steps_done, **self._origin(row.parameters, row.seed)})

    def resume(
        self, prompt: DiffusionPrompt[OdeParameters], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> MelRow:
        """Return the row that was saved. Raises ModelError naming what does not fit."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self._origin(row.parameters, row.seed))
        row.mel = saved.tensor("mel", tuple(row.mel.shape), torch.float32).to(self.token2wav.device, copy=True)
        row.steps_done = saved.steps_done(row.parameters.steps - 1)
        return row

    def _origin(self, parameters: OdeParameters, seed: int) -> dict[str, Any]:
        return {
            "saved_by": _SAVED_BY,
            "model": self.token2wav.fingerprint,
            "parameters": parameters.model_dump(mode="json"),
            "seed": seed,
        }


def _request(prompt: DiffusionPrompt[OdeParameters]) -> CodecRequest:
    codes, voice = prompt.tensors.get("codes"), prompt.values.get("voice")
    if not isinstance(codes, torch.Tensor):
        raise ModelError("there are no codes", field="codes")
    if not isinstance(voice, str):
        raise ModelError("there is no voice", field="voice")
    return CodecRequest(codes, voice, prompt.seed)
