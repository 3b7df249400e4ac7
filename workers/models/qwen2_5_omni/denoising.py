"""``Denoising`` turns noise into mels for a batch of code2wav's requests, their rows packed end to end.

A layer of the diffusion transformer attends at most one block of 24 frames back or ahead, and all its other
operations are per frame. So a batch needs no padding: attention runs from block to block, the rest over all
frames. Cost and memory grow with the number of frames; Transformers' own mask grows with the square of the
longest row.

The weights, the arithmetic and so the mel are those of Transformers' ``sample``. It draws its noise without a
seed and encodes the speaker in each of its 36 evaluations. ``Denoising`` draws the noise from each request's
seed, and computes once all values that do not change over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from workers.models.qwen2_5_omni.ode import SOLVERS
from workers.models.qwen2_5_omni.parameters import OdeParameters

_NO_GUIDANCE = 1e-5  # below this scale Transformers does not compute the unguided half


@dataclass(frozen=True, slots=True)
class Speaker:
    """The tensors of one voice of the checkpoint's ``spk_dict.pt``, on the model's device."""

    conditioning: torch.Tensor  # float32 [1, 192]
    encoded: torch.Tensor  # float32 [2, E]: the reference mel and, for guidance, silence, both encoded


@dataclass(frozen=True, slots=True)
class CodecRequest:
    """One row of a batch: codes int64 [N] that ``Token2Wav.check`` accepted, a voice, and the seed of its noise."""

    codes: torch.Tensor
    voice: str
    seed: int


class Denoising:
    """Turns noise into the mels of one batch. Call ``step`` until ``done``; between steps ``keep`` may drop rows.

    Shapes: F is the number of frames of all rows, end to end. Guidance computes them twice (G = 2): with
    their codes and voice, and without. For attention they lie in N blocks of S frames, the last block of
    each row filled up.
    """

    def __init__(
        self,
        dit: Any,
        requests: Sequence[CodecRequest],
        speakers: Sequence[Speaker],
        parameters: OdeParameters,
        device: torch.device,
    ) -> None:
        self._dit = dit
        self._solve = SOLVERS[parameters.solver]
        self._guidance = parameters.guidance_scale
        self._guided = parameters.guidance_scale >= _NO_GUIDANCE
        self._times = _time_grid(parameters)
        self.steps_done = 0
        self._frames = [len(request.codes) * int(dit.repeats) for request in requests]
        noise = [  # drawn on the CPU, so that it depends on the seed alone
            torch.randn(frames, dit.mel_dim, generator=torch.Generator().manual_seed(request.seed))
            for request, frames in zip(requests, self._frames, strict=True)
        ]
        self._state = torch.cat(noise).to(device)  # [F, mel]
        conditions = [
            self._condition(request.codes.to(device), speaker)
            for request, speaker in zip(requests, speakers, strict=True)
        ]
        self._conditions = torch.cat(conditions, dim=1)  # [G, F, C]
        self._arrange()

    @property
    def steps(self) -> int:
        """The number of solver steps in all: one fewer than the parameters' ``steps``, which counts the times."""
        return len(self._times) - 1

    @property
    def done(self) -> bool:
        """Whether all steps of the solver are taken."""
        return self.steps_done >= self.steps

    @torch.inference_mode()
    def step(self) -> None:
        """Take one step of the solver for all rows."""
        start, end = self._times[self.steps_done], self._times[self.steps_done + 1]
        self._state = self._solve(self._velocity, start, end, self._state)
        self.steps_done += 1

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Keep the rows of these indices, at least one, in this order, and free the memory of the others."""
        states = torch.split(self._state, self._frames)
        conditions = torch.split(self._conditions, self._frames, dim=1)
        self._state = torch.cat([states[row] for row in rows])
        self._conditions = torch.cat([conditions[row] for row in rows], dim=1)
        self._frames = [self._frames[row] for row in rows]
        self._arrange()

    def mels(self) -> list[torch.Tensor]:
        """Return each row's mel spectrogram float32 [frames, mel] on the model's device; it is noise until ``done``."""
        return list(torch.split(self._state, self._frames))

    def _condition(self, codes: torch.Tensor, speaker: Speaker) -> torch.Tensor:
        """Return the transformer's inputs for one row's T frames besides the noisy mel, [G, T, C].

        They do not change over time.
        """
        inputs = [(speaker.encoded[:1], self._dit.text_embed(codes[None])[0], speaker.conditioning)]
        if self._guided:
            silence = torch.zeros_like(speaker.conditioning)
            inputs.append((speaker.encoded[1:], self._dit.text_embed(codes[None], drop_code=True)[0], silence))
        return torch.stack(
            [
                torch.cat([voice.expand(len(embeds), -1), embeds, spoken.expand(len(embeds), -1)], dim=-1)
                for voice, embeds, spoken in inputs
            ]
        )

    def _arrange(self) -> None:
        """Compute the rotary positions and the attention windows of the current rows."""
        device = self._state.device
        positions = torch.cat([torch.arange(frames) for frames in self._frames]).to(device)
        cos, sin = self._dit.rotary_embed(self._state, positions[None])
        self._rotation = (cos[0, :, None], sin[0, :, None])  # [F, 1, D], the same for each guidance
        block = int(self._dit.block_size)
        reaches = {(0, 0)} | {
            (layer.look_backward_block, layer.look_ahead_block) for layer in self._dit.transformer_blocks
        }
        self._windows = {(back, ahead): _Window.of(self._frames, block, back, ahead, device) for back, ahead in reaches}
        self._unfilled = torch.nonzero(self._windows[0, 0].visible.flatten())[:, 0]  # int64 [F] in 0 … N x S

    def _velocity(self, time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the transformer's prediction [F, mel] at one time of the ODE."""
        dit = self._dit
        time_embeds = dit.time_embed(time[None].to(state.device))  # [1, E]
        rows = state.expand(len(self._conditions), -1, -1)
        hidden = dit.input_embed.proj(torch.cat([rows, self._conditions], dim=-1))  # [G, F, E]
        for layer in dit.transformer_blocks:
            hidden = self._layer(layer, hidden, time_embeds)
        prediction: torch.Tensor = dit.proj_out(dit.norm_out(hidden, time_embeds))
        if not self._guided:
            return prediction[0]
        guided, unguided = prediction[0], prediction[1]
        return guided + (guided - unguided) * self._guidance

    def _layer(self, layer: Any, hidden: torch.Tensor, time_embeds: torch.Tensor) -> torch.Tensor:
        """Compute ``DiTDecoderLayer.forward`` with attention from block to block: [G, F, E] → [G, F, E]."""
        norm, gate_attention, shift, scale, gate_mlp = layer.attn_norm(hidden, emb=time_embeds)
        window = self._windows[layer.look_backward_block, layer.look_ahead_block]
        hidden = hidden + gate_attention.unsqueeze(1) * self._attention(layer.attn, norm, window)
        norm = layer.ff_norm(hidden) * (1 + scale[:, None]) + shift[:, None]
        result: torch.Tensor = hidden + gate_mlp.unsqueeze(1) * layer.ff(norm)
        return result

    def _attention(self, attention: Any, hidden: torch.Tensor, window: _Window) -> torch.Tensor:
        """Compute ``DiTAttention.forward`` of each block's queries with its window's keys: [G, F, E] → [G, F, E]."""
        query, key, value = (
            project(hidden).unflatten(-1, (attention.heads, -1))
            for project in (attention.to_q, attention.to_k, attention.to_v)
        )  # [G, F, heads, D]
        # Only the first head has rotary positions; the model was trained so.
        query[:, :, :1] = _rotate(query[:, :, :1], self._rotation)
        key[:, :, :1] = _rotate(key[:, :, :1], self._rotation)
        attended = functional.scaled_dot_product_attention(
            self._windows[0, 0].gather(query),
            window.gather(key),
            window.gather(value),
            attn_mask=window.visible.repeat(len(hidden), 1)[:, None, None],  # [G x N, 1, 1, W]
        )  # [G x N, heads, S, D]
        in_blocks = attended.transpose(1, 2).reshape(len(hidden), -1, attention.heads * attended.shape[-1])
        result: torch.Tensor = attention.to_out[0](in_blocks[:, self._unfilled])
        return result


@dataclass(frozen=True, slots=True)
class _Window:
    """The W frames that each of N blocks attends to: its own, and those of some blocks back and ahead."""

    frames: torch.Tensor  # int64 [N, W] in 0 … F
    visible: torch.Tensor  # bool [N, W]: inside the block's own row

    @classmethod
    def of(cls, rows: Sequence[int], block: int, back: int, ahead: int, device: torch.device) -> _Window:
        """Compute the windows of all blocks; ``rows`` has the frames of each row, ``block`` the frames of a block."""
        around = torch.arange(-back * block, (1 + ahead) * block)
        frames, visible, begin = [], [], 0
        for length in rows:
            within = torch.arange(0, length, block)[:, None] + around  # [N of the row, W]
            frames.append(begin + within.clamp(0, length - 1))
            visible.append((within >= 0) & (within < length))
            begin += length
        return cls(torch.cat(frames).to(device), torch.cat(visible).to(device))

    def gather(self, heads: torch.Tensor) -> torch.Tensor:
        """Collect each block's window: [G, F, heads, D] → [G x N, heads, W, D]."""
        gathered = heads.index_select(1, self.frames.flatten())
        return gathered.view(-1, self.frames.shape[1], *heads.shape[2:]).transpose(1, 2)


def _rotate(head: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply rotary positions to [G, F, 1, D] as Transformers does: neighbouring pairs in, halves out."""
    cos, sin = rotation
    even, odd = head[..., 0::2], head[..., 1::2]
    return torch.cat([even, odd], dim=-1) * cos + torch.cat([-odd, even], dim=-1) * sin


def _time_grid(parameters: OdeParameters) -> torch.Tensor:
    """Return the times of the ODE, float32 [steps] from 0 to 1, with the sway sampling of F5-TTS."""
    times = torch.linspace(0, 1, parameters.steps)
    return times + parameters.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)
