"""``Code2Wav``: Qwen2.5-Omni's code2wav as a diffusion model: codes → mel (steps) → waveform (finish)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from omni_jobs.errors import ModelError
from workers.models.qwen2_5_omni.denoising import CodecRequest, Denoising
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import SAMPLING_RATE, Token2Wav, load_token2wav
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

# Mel frames, 100 in a second of speech. On a CPU larger batches are no faster, and all their rows wait for the last.
_MAX_BATCH_FRAMES: Mapping[str, int] = {"cpu": 1024, "cuda": 16_384}
_SHORT_FRAMES = 256  # a shorter row takes as long as this one, so all short rows may run together


def load_code2wav(model: OmniModelConfig, device: torch.device, dtype: str | None) -> "Code2Wav":
    """Return the code2wav of a checkpoint, which runs in float32. Raises ConfigError naming a part that is wrong."""
    del dtype  # the declaration allows no other
    return Code2Wav(load_token2wav(model.path, device, voices=model.voices))


class Code2Wav:
    """A ``DiffusionModel``. A prompt has a tensor ``codes`` int64 [N] without end tokens, and a value ``voice``."""

    def __init__(self, token2wav: Token2Wav) -> None:
        self.token2wav = token2wav
        self.max_batch_cost = _MAX_BATCH_FRAMES[token2wav.device.type]

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return the mel frames that the prompt takes. Raises ModelError naming the field that does not fit."""
        request = _request(prompt)
        self.token2wav.check(request.codes, request.voice)
        frames = self.token2wav.frames(request.codes)
        return Cost(frames, max(frames, _SHORT_FRAMES), prompt.parameters)

    def begin(self, prompts: Sequence[DiffusionPrompt]) -> "Code2WavBatch":
        """Return a batch of prompts of equal parameters."""
        parameters = _parameters(prompts[0])
        return Code2WavBatch(self.token2wav, self.token2wav.denoise([_request(each) for each in prompts], parameters))


class Code2WavBatch:
    """A ``DiffusionBatch``: it denoises the mels, and makes a waveform of each at the end."""

    def __init__(self, token2wav: Token2Wav, denoising: Denoising) -> None:
        self._token2wav = token2wav
        self._denoising = denoising

    @property
    def steps(self) -> int:
        return self._denoising.steps

    @property
    def steps_done(self) -> int:
        return self._denoising.steps_done

    @property
    def done(self) -> bool:
        return self._denoising.done

    def step(self) -> None:
        with _exact_float32():
            self._denoising.step()

    def keep(self, rows: Sequence[int]) -> None:
        self._denoising.keep(rows)

    def finish(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``waveform`` float32 [S], and its ``sampling_rate`` in Hz."""
        mels = self._denoising.mels()
        for group in self._token2wav.vocoder_groups([len(mel) for mel in mels]):
            rows = [row for row in group if wanted(row)]
            with _exact_float32():
                waveforms = self._token2wav.vocode([mels[row] for row in rows]) if rows else []
            for row, waveform in zip(rows, waveforms, strict=True):
                yield row, RowOutput({"waveform": waveform}, {"sampling_rate": SAMPLING_RATE})


def _request(prompt: DiffusionPrompt) -> CodecRequest:
    codes, voice = prompt.tensors.get("codes"), prompt.values.get("voice")
    if not isinstance(codes, torch.Tensor):
        raise ModelError("there are no codes", field="codes")
    if not isinstance(voice, str):
        raise ModelError("there is no voice", field="voice")
    return CodecRequest(codes, voice, prompt.seed)


def _parameters(prompt: DiffusionPrompt) -> OdeParameters:
    if not isinstance(prompt.parameters, OdeParameters):
        raise ModelError("code2wav has the parameters of an ODE", field="parameters")
    return prompt.parameters


@contextmanager
def _exact_float32() -> Iterator[None]:
    """Keep cuDNN's convolutions in float32: by default they round to TF32, and results differ by more than 1e-5."""
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield
