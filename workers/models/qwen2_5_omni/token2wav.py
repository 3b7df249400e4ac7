"""The code2wav model of Qwen2.5-Omni: codes → mel (diffusion transformer) → waveform (BigVGAN).

    load_token2wav(checkpoint, …) → Token2Wav            load the ``token2wav.`` weights into Transformers' modules
    Token2Wav.begin(request, parameters) → MelRow        a row of noise
    Token2Wav.denoiser.step(rows)                        one step of each row, whatever the step each is at
    Token2Wav.vocode(mels) → waveforms                   for mels of one length; vocoder_groups forms the groups

A request's waveform is the one that Transformers computes from the same noise, in any company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import read_json
from workers.models.checkpoint_weights import load_module
from workers.models.exact_float32 import exact_float32
from workers.models.qwen2_5_omni.checkpoint import read_speakers
from workers.models.qwen2_5_omni.denoising import CodecRequest, MelDenoiser, MelRow, Speaker
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.runners.diffusion.saved_row import weights_fingerprint

if TYPE_CHECKING:
    from transformers import Qwen2_5OmniToken2WavConfig, Qwen2_5OmniToken2WavModel

SAMPLING_RATE = 24_000  # Hz: BigVGAN makes 240 samples of a mel frame, of which a second has 100

_VOCODER_FRAMES = {"cpu": 320, "cuda": 16_384}  # mel frames in one call of the vocoder


def load_token2wav(checkpoint: Path, device: torch.device, *, voices: Sequence[str] = ()) -> Token2Wav:
    """Load the ``token2wav.`` part of a Qwen2.5-Omni checkpoint, and no other, in float32, and return its model.

    Raise ConfigError naming the part that is missing or wrong; each of ``voices`` must be there.
    """
    from transformers import Qwen2_5OmniToken2WavModel

    config = _read_config(checkpoint)
    model = load_module(Qwen2_5OmniToken2WavModel, config, checkpoint, "token2wav.", device, torch.float32)
    return Token2Wav(model, read_speakers(checkpoint, voices))


def _read_config(checkpoint: Path) -> Qwen2_5OmniToken2WavConfig:
    from transformers import Qwen2_5OmniToken2WavConfig

    path = checkpoint / "config.json"
    section = read_json(path).get("token2wav_config")
    if not isinstance(section, dict):
        raise ConfigError("config.json has no token2wav_config", file=str(path), field="token2wav_config")
    config = Qwen2_5OmniToken2WavConfig(**section)
    config._attn_implementation = "sdpa"  # Transformers' only implementation that takes this model's masks
    return config


class Token2Wav:
    """Transformers' token2wav model and the checkpoint's voices, on one device."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, speakers: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._dit: Any = model.code2wav_dit_model
        self._vocoder: Any = model.code2wav_bigvgan_model
        self.device = next(model.parameters()).device
        self.fingerprint = weights_fingerprint(model)
        self.denoiser = MelDenoiser(self._dit, self.device)
        self._speakers = {name: self._encode(speaker) for name, speaker in speakers.items()}

    def check(self, codes: torch.Tensor, voice: str) -> None:
        """Raise ModelError naming the field when the model has no such voice or cannot speak these codes."""
        if voice not in self._speakers:
            known = ", ".join(sorted(self._speakers))
            raise ModelError(f"unknown voice {voice!r}; the checkpoint has {known}", field="voice")
        if codes.dtype != torch.int64 or codes.ndim != 1:
            raise ModelError(f"codes must be int64 [N], not {codes.dtype} {list(codes.shape)}", field="codes")
        if not len(codes):
            raise ModelError("there are no codes: the talker ended before it said anything", field="codes")
        outside = torch.nonzero((codes < 0) | (codes > self._dit.config.num_embeds))
        if len(outside):
            at = int(outside[0])
            raise ModelError(
                f"code {int(codes[at])} at {at} is not in 0 … {self._dit.config.num_embeds}", field="codes"
            )
        longest = self._dit.config.max_position_embeddings
        if self.frames(codes) > longest:
            raise ModelError(f"{self.frames(codes)} mel frames, the model takes {longest}", field="codes")

    def frames(self, codes: torch.Tensor) -> int:
        """Return the number of mel frames of these codes: two for each code."""
        return len(codes) * int(self._dit.repeats)

    def begin(self, request: CodecRequest, parameters: OdeParameters) -> MelRow:
        """Return the row of a request that has passed ``check``; no step is taken yet."""
        return self.denoiser.begin(request, self._speakers[request.voice], parameters)

    def vocoder_groups(self, frames: Sequence[int]) -> list[list[int]]:
        """Group rows of these lengths (mel frames) for the vocoder; return the indices of each group.

        The rows of a group have equal length, because padding would change a convolution's result. On the CPU groups
        are small, because long rows are slower together than one by one (benchmarks.diffusion_runner).
        """
        max_frames = _VOCODER_FRAMES[self.device.type]
        groups: list[list[int]] = []
        open_group: dict[int, list[int]] = {}
        for n, length in enumerate(frames):
            group = open_group.get(length)
            if group is None or (len(group) + 1) * length > max_frames:
                group = open_group[length] = []
                groups.append(group)
            group.append(n)
        return groups

    @torch.inference_mode()
    def vocode(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the waveforms float32 [240 T] on the CPU, of mels [T, 80] of one length."""
        waveforms: torch.Tensor = self._vocoder(torch.stack(list(mels)).permute(0, 2, 1))
        return list(waveforms.reshape(len(mels), -1).unbind())

    @torch.inference_mode()
    def _encode(self, speaker: Mapping[str, torch.Tensor]) -> Speaker:
        """Run one entry of ``spk_dict.pt`` through the speaker encoder."""
        conditioning = speaker["cond"].to(self.device, torch.float32)
        mel = speaker["ref_mel"].to(self.device, torch.float32)
        with exact_float32():
            encoded = self._dit.input_embed.spk_encoder(torch.cat([mel, torch.zeros_like(mel)]))
        return Speaker(conditioning, encoded)
