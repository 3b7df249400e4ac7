"""``Denoising``: a batch of token2wav's requests on its way from noise to mel, rows of any length packed end to end.

A layer of the diffusion transformer looks at most one block of 24 frames back or ahead, and
all else in it is per frame. So a batch needs no padding: attention runs from block to
block, everything else over the frames there are. Cost and memory grow with those, where
Transformers' own mask grows with the square of the longest row.

Transformers' ``sample`` draws its noise unseeded and encodes the speaker anew in each of
its 36 evaluations. Here the same weights and the same arithmetic give the same mel, with
noise from each request's seed, and what does not change over time computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from omni_jobs.pipelines.parameters import DiffusionParameters
from workers.models.ode import SOLVERS

__all__ = ["CodecRequest", "Denoising", "Speaker", "initial_noise"]

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


def initial_noise(seed: int, frames: int, mel_dim: int) -> torch.Tensor:
    """float32 [frames, mel_dim], drawn on the CPU: the same noise whatever the device and the batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, mel_dim, generator=generator)


class Denoising:
    """One ragged batch. ``step`` until ``done``; between steps ``keep`` may drop rows.

    F are the frames of all rows, end to end. Guidance runs them twice (G = 2): with their
    codes and voice, and without. For attention alone they lie in N blocks of S frames, the
    last block of each row filled up.
    """

    def __init__(
        self,
        dit: Any,
        requests: Sequence[CodecRequest],
        speakers: Sequence[Speaker],
        parameters: DiffusionParameters,
        device: torch.device,
    ) -> None:
        self._dit = dit
        self._solve = SOLVERS[parameters.solver]
        self._guidance = parameters.guidance_scale
        self._guided = parameters.guidance_scale >= _NO_GUIDANCE
        self._times = _time_grid(parameters)
        self._at = 0
        self._frames = [len(request.codes) * int(dit.repeats) for request in requests]
        noise = [
            initial_noise(request.seed, frames, dit.mel_dim)
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
        """One step of the solver."""
        start, end = self._times[self._at], self._times[self._at + 1]
        self._state = self._solve(self._velocity, start, end, self._state)
        self._at += 1

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; what only the others needed is freed."""
        states = torch.split(self._state, self._frames)
        conditions = torch.split(self._conditions, self._frames, dim=1)
        self._state = torch.cat([states[row] for row in rows])
        self._conditions = torch.cat([conditions[row] for row in rows], dim=1)
        self._frames = [self._frames[row] for row in rows]
        self._arrange()

    def mels(self) -> list[torch.Tensor]:
        """The rows' mels, float32 [T of the row, mel]."""
        return list(torch.split(self._state, self._frames))

    def _condition(self, codes: torch.Tensor, speaker: Speaker) -> torch.Tensor:
        """What the transformer is told of one row's T frames besides the noisy mel, [G, T, C].

        It does not change over time.
        """
        told = [(speaker.encoded[:1], self._dit.text_embed(codes[None])[0], speaker.conditioning)]
        if self._guided:
            silence = torch.zeros_like(speaker.conditioning)
            told.append((speaker.encoded[1:], self._dit.text_embed(codes[None], drop_code=True)[0], silence))
        return torch.stack(
            [
                torch.cat([voice.expand(len(embeds), -1), embeds, spoken.expand(len(embeds), -1)], dim=-1)
                for voice, embeds, spoken in told
            ]
        )

    def _arrange(self) -> None:
        """Positions and visibility of this set of rows."""
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
        """The transformer's prediction at one time of the ODE, [F, mel]."""
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
        """``DiTDecoderLayer.forward``, with attention from block to block."""
        norm, gate_attention, shift, scale, gate_mlp = layer.attn_norm(hidden, emb=time_embeds)
        window = self._windows[layer.look_backward_block, layer.look_ahead_block]
        hidden = hidden + gate_attention.unsqueeze(1) * self._attention(layer.attn, norm, window)
        norm = layer.ff_norm(hidden) * (1 + scale[:, None]) + shift[:, None]
        result: torch.Tensor = hidden + gate_mlp.unsqueeze(1) * layer.ff(norm)
        return result

    def _attention(self, attention: Any, hidden: torch.Tensor, window: _Window) -> torch.Tensor:
        """``DiTAttention.forward``: [G, F, E] → [G, F, E]; each block's queries against its window's keys."""
        query, key, value = (
            project(hidden).unflatten(-1, (attention.heads, -1))
            for project in (attention.to_q, attention.to_k, attention.to_v)
        )  # [G, F, heads, D]
        # As trained, only the first head knows positions.
        query[:, :, :1] = _rotate(query[:, :, :1], self._rotation)
        key[:, :, :1] = _rotate(key[:, :, :1], self._rotation)
        found = functional.scaled_dot_product_attention(
            self._windows[0, 0].gather(query),
            window.gather(key),
            window.gather(value),
            attn_mask=window.visible.repeat(len(hidden), 1)[:, None, None],  # [G x N, 1, 1, W]
        )  # [G x N, heads, S, D]
        in_blocks = found.transpose(1, 2).reshape(len(hidden), -1, attention.heads * found.shape[-1])
        result: torch.Tensor = attention.to_out[0](in_blocks[:, self._unfilled])
        return result


@dataclass(frozen=True, slots=True)
class _Window:
    """The W frames that each of N blocks sees: its own, and those of some blocks back and ahead."""

    frames: torch.Tensor  # int64 [N, W] in 0 … F
    visible: torch.Tensor  # bool [N, W]: not outside the block's own row

    @classmethod
    def of(cls, rows: Sequence[int], block: int, back: int, ahead: int, device: torch.device) -> _Window:
        """``rows``: frames of each row; ``block``: frames of a block."""
        around = torch.arange(-back * block, (1 + ahead) * block)
        frames, visible, begin = [], [], 0
        for length in rows:
            within = torch.arange(0, length, block)[:, None] + around  # [N of the row, W]
            frames.append(begin + within.clamp(0, length - 1))
            visible.append((within >= 0) & (within < length))
            begin += length
        return cls(torch.cat(frames).to(device), torch.cat(visible).to(device))

    def gather(self, heads: torch.Tensor) -> torch.Tensor:
        """[G, F, heads, D] → [G x N, heads, W, D]."""
        gathered = heads.index_select(1, self.frames.flatten())
        return gathered.view(-1, self.frames.shape[1], *heads.shape[2:]).transpose(1, 2)


def _rotate(head: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions: [G, F, 1, D], pairs of neighbours in, halves out, as Transformers' attention does."""
    cos, sin = rotation
    even, odd = head[..., 0::2], head[..., 1::2]
    return torch.cat([even, odd], dim=-1) * cos + torch.cat([-odd, even], dim=-1) * sin


def _time_grid(parameters: DiffusionParameters) -> torch.Tensor:
    """The times of the ODE, float32 [steps] from 0 to 1, swayed as in F5-TTS."""
    times = torch.linspace(0, 1, parameters.steps)
    return times + parameters.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)
