"""``FrameDecoder``: Qwen3-Omni's code2wav as a diffusion model: frames of codes → waveform, a chunk in each step.

A chunk is decoded with some frames before it, whose samples are cut off again. Each chunk is a few samples shorter
than its frames, because the transposed convolutions drop what would depend on the frames behind it.

Source: Transformers' ``Qwen3OmniMoeCode2Wav.chunked_decode``. Rows of different lengths share a step: the shorter are
filled up behind their end, which changes no sample that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import read_json
from workers.models.checkpoint_weights import load_module
from workers.models.exact_float32 import exact_float32
from workers.models.qwen3_omni.parameters import ChunkParameters
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

if TYPE_CHECKING:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

WAVEFORM_SAMPLING_RATE = 24_000
"""Hz."""

# By default a chunk and its context have 325 frames. On a CPU larger steps take longer in proportion.
_MAX_STEP_FRAMES: Mapping[str, int] = {"cpu": 325, "cuda": 1300}


def load_frame_decoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> FrameDecoder:
    """Return the code2wav of a checkpoint, which runs in float32. Raise ConfigError naming a part that is wrong."""
    del dtype  # the declaration allows no other
    from transformers import Qwen3OmniMoeCode2Wav

    config = _read_config(model.path)
    return FrameDecoder(load_module(Qwen3OmniMoeCode2Wav, config, model.path, "code2wav.", device, torch.float32))


def _read_config(checkpoint: Path) -> Qwen3OmniMoeCode2WavConfig:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    path = checkpoint / "config.json"
    section = read_json(path).get("code2wav_config")
    if not isinstance(section, dict):
        raise ConfigError("config.json has no code2wav_config", file=str(path), field="code2wav_config")
    config = Qwen3OmniMoeCode2WavConfig(**section)
    config._attn_implementation = "sdpa"
    return config


@dataclass(eq=False, slots=True, weakref_slot=True)
class FrameRow:
    """One prompt under way. Implements ``DiffusionRow``."""

    frames: torch.Tensor  # int64 [N, codebooks] on the model's device
    parameters: ChunkParameters
    parts: list[torch.Tensor] = field(default_factory=list)  # float32 [samples], one for each step taken

    @property
    def steps_done(self) -> int:
        return len(self.parts)

    def next_chunk(self) -> tuple[torch.Tensor, int]:
        """Return the next chunk's frames with its context, and how many of them are context."""
        begin = self.steps_done * self.parameters.chunk_frames
        context = min(self.parameters.context_frames, begin)
        return self.frames[begin - context : begin + self.parameters.chunk_frames], context


class FrameDecoder:
    """A ``DiffusionModel``. A prompt has a tensor ``frames`` int64 [N, codebooks]."""

    def __init__(self, model: Any) -> None:
        """``model``: Transformers' ``Qwen3OmniMoeCode2Wav`` with its weights."""
        self._model = model
        self._device: torch.device = next(model.parameters()).device
        self.max_batch_cost = _MAX_STEP_FRAMES[self._device.type]

    def check(self, prompt: DiffusionPrompt[ChunkParameters]) -> Cost:
        """Return the frames of the prompt's longest step, and its chunks. Raise ModelError naming what does not fit."""
        frames, parameters, config = _frames(prompt), prompt.parameters, self._model.config
        if frames.dtype != torch.int64 or frames.ndim != 2 or frames.shape[1] != config.num_quantizers:
            found = f"{frames.dtype} {list(frames.shape)}"
            raise ModelError(f"frames must be int64 [N, {config.num_quantizers}], not {found}", field="frames")
        if not len(frames):
            raise ModelError("there are no frames: the talker ended before it said anything", field="frames")
        outside = torch.nonzero((frames < 0) | (frames >= config.codebook_size))
        if len(outside):
            at = outside[0].tolist()
            code = int(frames[tuple(at)])
            raise ModelError(f"code {code} at {at} is not in 0 … {config.codebook_size - 1}", field="frames")
        longest = min(len(frames), parameters.context_frames + parameters.chunk_frames)
        return Cost(longest, -(-len(frames) // parameters.chunk_frames), None)

    def begin(self, prompt: DiffusionPrompt[ChunkParameters]) -> FrameRow:
        """Return the row of a prompt."""
        return FrameRow(_frames(prompt).to(self._device), prompt.parameters)

    @torch.inference_mode()
    def step(self, rows: Sequence[FrameRow]) -> None:
        """Decode the next chunk of each row."""
        chunks = [row.next_chunk() for row in rows]
        padded = torch.nn.utils.rnn.pad_sequence([frames for frames, _ in chunks], batch_first=True)
        with exact_float32():
            waveforms = self._model(padded.transpose(1, 2))[:, 0]
        upsampled = int(self._model.total_upsample)
        for row, (frames, context), waveform in zip(rows, chunks, waveforms, strict=True):
            heard = waveform[context * upsampled : self._samples(len(frames))]
            row.parts.append(heard.to("cpu", torch.float32, copy=True))

    def finish(self, rows: Sequence[FrameRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``waveform`` float32 [S], and its ``sampling_rate`` in Hz."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"waveform": torch.cat(row.parts)}, {"sampling_rate": WAVEFORM_SAMPLING_RATE})

    def _samples(self, frames: int) -> int:
        """Return how many samples the model makes of a number of frames, those that it drops not counted."""
        config = self._model.config
        samples = frames
        for ratio in config.upsampling_ratios:
            samples *= ratio
        for rate in config.upsample_rates:  # each layer would need one input more for its last samples
            samples = (samples - 1) * rate
        return samples


def _frames(prompt: DiffusionPrompt[ChunkParameters]) -> torch.Tensor:
    frames = prompt.tensors.get("frames")
    if not isinstance(frames, torch.Tensor):
        raise ModelError("there are no frames", field="frames")
    return frames
