"""code2wav of Qwen2.5-Omni: codes → mel (diffusion transformer) → waveform (BigVGAN), in exact ragged batches.

    load_token2wav(checkpoint, …) → Token2Wav        the ``token2wav.`` weights in Transformers' own modules
    Token2Wav.denoise(requests, solver) → Denoising  step() until done, keep() drops rows between steps
    Token2Wav.vocode(mels) → waveforms

Transformers' ``sample`` takes no padding mask, draws its noise unseeded and encodes the
speaker anew in each of its 36 evaluations. Here the same modules run the same
arithmetic, with three differences: noise comes from each request's seed, what does not
change over time is computed once (masks, too), and frames past a request's end are
hidden from it.
A request's result is Transformers' own, whatever else is in its batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.parameters import DiffusionParameters

if TYPE_CHECKING:
    from transformers import Qwen2_5OmniToken2WavConfig, Qwen2_5OmniToken2WavModel

__all__ = ["SAMPLING_RATE", "CodecRequest", "Denoising", "Speaker", "Token2Wav", "initial_noise", "load_token2wav"]

SAMPLING_RATE = 24_000  # Hz; BigVGAN makes 240 samples of each of the 100 mel frames per second

_PREFIX = "token2wav."
_NO_GUIDANCE = 1e-5  # below it Transformers leaves the unguided half out


@dataclass(frozen=True, slots=True)
class Speaker:
    """One voice of the checkpoint's ``spk_dict.pt``, on the model's device."""

    conditioning: torch.Tensor  # float32 [1, 192]
    encoded: torch.Tensor  # float32 [2, E]: the reference mel through the speaker encoder, and silence for guidance


@dataclass(frozen=True, slots=True)
class CodecRequest:
    """What to speak: checked codes int64 [N], who speaks, and the seed of the noise."""

    codes: torch.Tensor
    voice: str
    seed: int


def load_token2wav(checkpoint: Path, device: torch.device, *, voices: Sequence[str] = ()) -> Token2Wav:
    """Read only the ``token2wav.`` part of a Qwen2.5-Omni checkpoint, in float32.

    Raises ConfigError naming what the checkpoint lacks, ``voices`` included.
    """
    from transformers import Qwen2_5OmniToken2WavModel
    from transformers.initialization import no_init_weights

    with no_init_weights():  # 12 s less for the real one
        model: Any = Qwen2_5OmniToken2WavModel(_read_config(checkpoint))
    try:
        model.load_state_dict(_read_weights(checkpoint))
    except RuntimeError as error:
        raise ConfigError(f"token2wav of {checkpoint} does not fit: {error}", field="model.path") from error
    model.eval().requires_grad_(False)
    return Token2Wav(model.to(device), _read_speakers(checkpoint, voices))


def _read_config(checkpoint: Path) -> Qwen2_5OmniToken2WavConfig:
    from transformers import Qwen2_5OmniToken2WavConfig

    path = checkpoint / "config.json"
    try:
        section = json.loads(path.read_text(encoding="utf-8"))["token2wav_config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("config.json has no token2wav_config", file=str(path), field="token2wav_config") from error
    config = Qwen2_5OmniToken2WavConfig(**section)
    config._attn_implementation = "sdpa"  # the only one of Transformers' that takes this model's masks
    return config


def _read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in _weight_files(checkpoint):
        try:
            with safe_open(checkpoint / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    if key.startswith(_PREFIX):
                        weights[key.removeprefix(_PREFIX)] = file.get_tensor(key).float()
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{name} cannot be read: {error}", file=str(checkpoint / name)) from error
    return weights


def _weight_files(checkpoint: Path) -> list[str]:
    """The safetensors files that hold token2wav, by the index where the checkpoint is sharded."""
    index = checkpoint / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        file_of = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return sorted({file for key, file in file_of.items() if key.startswith(_PREFIX)})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError("the weight index cannot be read", file=str(index), field="weight_map") from error


def _read_speakers(checkpoint: Path, voices: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
    path = checkpoint / "spk_dict.pt"
    try:
        # The checkpoint's own format; weights_only unpickles tensors and plain containers alone.
        speakers: dict[str, dict[str, torch.Tensor]] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the unpickler meets
        raise ConfigError(f"the speakers cannot be read: {error}", file=str(path)) from error
    missing = [voice for voice in voices if voice not in speakers]
    if missing:
        known = ", ".join(sorted(speakers))
        raise ConfigError(
            f"no speaker {', '.join(missing)}; the checkpoint has {known}", file=str(path), field="voices"
        )
    return speakers


class Token2Wav:
    """Transformers' model and the checkpoint's voices on one device."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, speakers: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._dit: Any = model.code2wav_dit_model
        self._vocoder: Any = model.code2wav_bigvgan_model
        self.device = next(model.parameters()).device
        self._speakers = {name: self._encode(speaker) for name, speaker in speakers.items()}

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(self._speakers)

    def check(self, codes: torch.Tensor, voice: str) -> None:
        """Raise ModelError naming the field that the model cannot speak."""
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
        """Mel frames of these codes; each code is two."""
        return len(codes) * int(self._dit.repeats)

    @torch.inference_mode()
    def denoise(self, requests: Sequence[CodecRequest], solver: DiffusionParameters) -> Denoising:
        """Begin one ragged batch. The requests must have passed ``check``."""
        speakers = [self._speakers[request.voice] for request in requests]
        return Denoising(self._dit, requests, speakers, solver, self.device)

    @torch.inference_mode()
    def vocode(self, mels: Sequence[torch.Tensor]) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """Mels [T, 80] → waveforms float32 [S] on the CPU, in groups of equal length: the convolutions see the end.

        Yields (indices into ``mels``, their waveforms) per group.
        """
        groups: dict[int, list[int]] = {}
        for n, mel in enumerate(mels):
            groups.setdefault(len(mel), []).append(n)
        for group in groups.values():
            batch = torch.stack([mels[n] for n in group]).permute(0, 2, 1)
            waveforms = self._vocoder(batch).reshape(len(group), -1)
            yield group, list(waveforms.unbind())

    @torch.inference_mode()
    def _encode(self, speaker: Mapping[str, torch.Tensor]) -> Speaker:
        conditioning = speaker["cond"].to(self.device, torch.float32)
        mel = speaker["ref_mel"].to(self.device, torch.float32)
        return Speaker(conditioning, self._dit.input_embed.spk_encoder(torch.cat([mel, torch.zeros_like(mel)])))


def initial_noise(seed: int, frames: int, mel_dim: int) -> torch.Tensor:
    """float32 [frames, mel_dim], drawn on the CPU: the same noise whatever the device and the batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, mel_dim, generator=generator)


class Denoising:
    """One ragged batch on its way from noise to mel.

    ``step`` until ``done``; between steps ``keep`` may drop rows. B rows, T frames of the
    longest; guidance runs every row twice (G = 2): with its codes and voice, and without.
    """

    def __init__(
        self,
        dit: Any,
        requests: Sequence[CodecRequest],
        speakers: Sequence[Speaker],
        solver: DiffusionParameters,
        device: torch.device,
    ) -> None:
        self._dit = dit
        self._guidance = solver.guidance_scale
        self._guided = solver.guidance_scale >= _NO_GUIDANCE
        self._times = _time_grid(solver)
        self._at = 0
        self._frames = [len(request.codes) * int(dit.repeats) for request in requests]
        longest = max(self._frames)
        noise = [
            initial_noise(request.seed, frames, dit.mel_dim)
            for request, frames in zip(requests, self._frames, strict=True)
        ]
        self._state = torch.nn.utils.rnn.pad_sequence(noise, batch_first=True).to(device)  # [B, T, mel]
        codes = torch.zeros(len(requests), longest // int(dit.repeats), dtype=torch.int64)
        for row, request in zip(codes, requests, strict=True):
            row[: len(request.codes)] = request.codes
        self._conditions = self._condition(codes.to(device), speakers)  # [G, B, T, E]
        self._arrange()

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self._times) - 1

    @property
    def steps_done(self) -> int:
        return self._at

    @property
    def done(self) -> bool:
        return self._at >= self.steps

    @torch.inference_mode()
    def step(self) -> None:
        """One Runge-Kutta step (the 3/8 rule, as Transformers' solver takes it): four evaluations."""
        start, end = self._times[self._at], self._times[self._at + 1]
        width = end - start
        state, third, two_thirds = self._state, 1 / 3, 2 / 3
        k1 = self._velocity(start, state)
        k2 = self._velocity(start + width * third, state + width * k1 * third)
        k3 = self._velocity(start + width * two_thirds, state + width * (k2 - k1 * third))
        k4 = self._velocity(end, state + width * (k1 - k2 + k3))
        self._state = state + (k1 + 3 * (k2 + k3) + k4) * width / 8
        self._at += 1

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; what only the others needed is freed."""
        self._frames = [self._frames[row] for row in rows]
        longest = max(self._frames)
        index = torch.tensor(rows, device=self._state.device)
        self._state = self._state[index, :longest]
        self._conditions = self._conditions[:, index, :longest]
        self._arrange()

    def mels(self) -> list[torch.Tensor]:
        """The rows' mels, float32 [T of the row, mel]."""
        return [row[:frames] for row, frames in zip(self._state, self._frames, strict=True)]

    def _condition(self, codes: torch.Tensor, speakers: Sequence[Speaker]) -> torch.Tensor:
        """What the transformer is told of every frame besides the noisy mel; it does not change over time."""
        frames = codes.shape[1] * int(self._dit.repeats)
        encoded = torch.stack([speaker.encoded for speaker in speakers], dim=1)  # [2, B, enc_dim]
        conditioning = torch.cat([speaker.conditioning for speaker in speakers])  # [B, 192]
        told = [(encoded[0], self._dit.text_embed(codes), conditioning)]
        if self._guided:
            silence = torch.zeros_like(conditioning)
            told.append((encoded[1], self._dit.text_embed(codes, drop_code=True), silence))
        return torch.stack(
            [
                torch.cat([_over_time(voice, frames), code_embeds, _over_time(speaker, frames)], dim=-1)
                for voice, code_embeds, speaker in told
            ]
        )

    def _arrange(self) -> None:
        """Positions and visibility of this set of rows."""
        longest = self._state.shape[1]
        positions = torch.arange(longest, device=self._state.device)
        self._rotation = self._dit.rotary_embed(self._state, positions[None])
        blocks = positions // self._dit.block_size
        distance = (blocks[None, :] - blocks[:, None])[None, None]  # [1, 1, T, T]
        hidden = None
        if min(self._frames) < longest:
            padded = positions >= torch.tensor(self._frames, device=self._state.device)[:, None]  # [B, T]
            # A padded query keeps seeing padded keys: a row that sees nothing at all gives NaN.
            hidden = (~padded[:, None, :, None] & padded[:, None, None, :]).repeat(len(self._conditions), 1, 1, 1)
        mask_of: dict[tuple[int, int], torch.Tensor] = {}
        for layer in self._dit.transformer_blocks:
            back, ahead = layer.look_backward_block, layer.look_ahead_block
            if (back, ahead) not in mask_of:
                out_of_reach = (distance < -back) | (distance > ahead)
                out_of_reach = out_of_reach if hidden is None else out_of_reach | hidden
                mask = torch.zeros(out_of_reach.shape, device=self._state.device)
                mask_of[back, ahead] = mask.masked_fill_(out_of_reach, -torch.inf)
        self._masks = mask_of  # added to the attention scores, [1 or G x B, 1, T, T], by (back, ahead)

    def _velocity(self, time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The transformer's prediction at one time of the ODE, [B, T, mel]."""
        dit = self._dit
        rows = torch.cat([state] * len(self._conditions)) if self._guided else state
        time_embeds = dit.time_embed(time.repeat(len(rows)).to(state.device))
        hidden = dit.input_embed.proj(torch.cat([rows, self._conditions.flatten(0, 1)], dim=-1))
        for layer in dit.transformer_blocks:
            hidden = self._layer(layer, hidden, time_embeds)
        prediction: torch.Tensor = dit.proj_out(dit.norm_out(hidden, time_embeds))
        if not self._guided:
            return prediction
        guided, unguided = prediction.chunk(2)
        return guided + (guided - unguided) * self._guidance

    def _layer(self, layer: Any, hidden: torch.Tensor, time_embeds: torch.Tensor) -> torch.Tensor:
        """``DiTDecoderLayer.forward``, which makes its mask anew in each of the 36 x layers calls."""
        norm, gate_attention, shift, scale, gate_mlp = layer.attn_norm(hidden, emb=time_embeds)
        attention = layer.attn(
            hidden_states=norm,
            position_embeddings=self._rotation,
            attention_mask=self._masks[layer.look_backward_block, layer.look_ahead_block],
        )
        hidden = hidden + gate_attention.unsqueeze(1) * attention
        norm = layer.ff_norm(hidden) * (1 + scale[:, None]) + shift[:, None]
        result: torch.Tensor = hidden + gate_mlp.unsqueeze(1) * layer.ff(norm)
        return result


def _over_time(rows: torch.Tensor, frames: int) -> torch.Tensor:
    return rows[:, None].expand(-1, frames, -1)  # [B, E] → [B, T, E]


def _time_grid(solver: DiffusionParameters) -> torch.Tensor:
    """The times of the ODE, float32 [steps] from 0 to 1, swayed as in F5-TTS."""
    times = torch.linspace(0, 1, solver.steps)
    return times + solver.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)
