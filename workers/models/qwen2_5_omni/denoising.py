"""``MelDenoiser`` turns noise into mels for code2wav's requests, their rows packed end to end.

A layer of the diffusion transformer attends at most one block of 24 frames back or ahead, and all its other
operations are per frame. So rows of any length share a forward without padding: attention runs from block to block,
the rest over all frames. Cost and memory grow with the number of frames; Transformers' own mask grows with the square
of the longest row. A row's time enters through a few vectors, which are computed once a row and expanded to its
frames, so rows at different times share a forward as well.

The weights, the arithmetic and so the mel are those of Transformers' ``sample``. It draws its noise without a
seed and encodes the speaker in each of its 36 evaluations. A row draws its noise from its request's seed, and keeps
all values that do not change over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn import functional

from workers.models.qwen2_5_omni.ode import SOLVERS, Evaluation, SolverStep
from workers.models.qwen2_5_omni.parameters import OdeParameters

_NO_GUIDANCE = 1e-5  # below this scale Transformers does not compute the unguided half
_KEPT_PACKINGS = 4  # the same rows come again and again; with different solvers in one step, a few sets of them


@dataclass(frozen=True, slots=True)
class Speaker:
    """The tensors of one voice of the checkpoint's ``spk_dict.pt``, on the model's device."""

    conditioning: torch.Tensor  # float32 [1, 192]
    encoded: torch.Tensor  # float32 [2, E]: the reference mel and, for guidance, silence, both encoded


@dataclass(frozen=True, slots=True)
class CodecRequest:
    """What a row speaks: codes int64 [N] that ``Token2Wav.check`` accepted, a voice, and the seed of its noise."""

    codes: torch.Tensor
    voice: str
    seed: int


@dataclass(frozen=True, slots=True)
class _Lane:
    """The transformer's inputs besides the noisy mel, which do not change over time: [T, …], or [1, …] of all frames.

    They are expanded in a forward alone, because a row keeps them for as long as it is under way.
    """

    voice: torch.Tensor
    codes: torch.Tensor
    speaker: torch.Tensor

    def inputs(self, mel: torch.Tensor) -> torch.Tensor:
        """Return the transformer's inputs [T, C] for a noisy mel [T, mel]."""
        parts = (self.voice, self.codes, self.speaker)
        return torch.cat([mel, *(part.expand(len(mel), -1) for part in parts)], dim=-1)


@dataclass(eq=False, slots=True, weakref_slot=True)
class MelRow:
    """One request under way. Implements ``DiffusionRow``.

    A row of T frames is computed in G lanes: with guidance (G = 2) with its codes and voice, and without, otherwise
    with them alone.
    """

    parameters: OdeParameters
    seed: int
    lanes: Sequence[_Lane]
    mel: torch.Tensor  # float32 [T, mel] on the model's device; noise until the steps are taken
    steps_done: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(G, T)."""
        return len(self.lanes), len(self.mel)

    def begin_step(self) -> SolverStep:
        """Return the row's next step, which changes nothing of the row."""
        times = _time_grid(self.parameters)
        return SOLVERS[self.parameters.solver](times[self.steps_done], times[self.steps_done + 1], self.mel)

    def guide(self, prediction: torch.Tensor) -> torch.Tensor:
        """Return the velocity [T, mel] of the prediction [G x T, mel] of its lanes."""
        if len(self.lanes) == 1:
            return prediction
        guided, unguided = prediction.chunk(2)
        return guided + (guided - unguided) * self.parameters.guidance_scale


class MelDenoiser:
    """Takes the steps of rows with code2wav's diffusion transformer.

    Shapes: F is the number of frames of all lanes of R rows, end to end. For attention they lie in N blocks of S
    frames, the last block of each lane filled up.
    """

    def __init__(self, dit: Any, device: torch.device) -> None:
        self._dit = dit
        self._device = device
        self._packing = lru_cache(maxsize=_KEPT_PACKINGS)(partial(_Packing.of, dit, device))

    @torch.inference_mode()
    def begin(self, request: CodecRequest, speaker: Speaker, parameters: OdeParameters) -> MelRow:
        """Return the row of a request; no step is taken yet."""
        frames = len(request.codes) * int(self._dit.repeats)
        # Drawn on the CPU, so that it depends on the seed alone.
        noise = torch.randn(frames, self._dit.mel_dim, generator=torch.Generator().manual_seed(request.seed))
        guided = parameters.guidance_scale >= _NO_GUIDANCE
        lanes = self._lanes(request.codes.to(self._device), speaker, guided=guided)
        return MelRow(parameters, request.seed, lanes, noise.to(self._device))

    @torch.inference_mode()
    def step(self, rows: Sequence[MelRow]) -> None:
        """Take one step of each row's solver. If it raises, no row has advanced, and nothing is kept of the try."""
        try:
            mels = self._solve(rows)
        except Exception:
            self._packing.cache_clear()  # memory may lack
            raise
        for row, mel in zip(rows, mels, strict=True):
            row.mel = mel
            row.steps_done += 1

    def _solve(self, rows: Sequence[MelRow]) -> list[torch.Tensor]:
        """Return each row's mel after its next step."""
        steps = [row.begin_step() for row in rows]
        asked = {number: next(step) for number, step in enumerate(steps)}
        mels: dict[int, torch.Tensor] = {}
        while asked:
            velocities = self._velocities([rows[number] for number in asked], list(asked.values()))
            answered, asked = list(zip(asked, velocities, strict=True)), {}
            for number, velocity in answered:
                try:
                    asked[number] = steps[number].send(velocity)
                except StopIteration as end:
                    mels[number] = end.value
        return [mels[number] for number in range(len(rows))]

    def _lanes(self, codes: torch.Tensor, speaker: Speaker, *, guided: bool) -> list[_Lane]:
        embed = self._dit.text_embed
        lanes = [_Lane(speaker.encoded[:1], embed(codes[None])[0], speaker.conditioning)]
        if guided:
            silence = torch.zeros_like(speaker.conditioning)
            lanes.append(_Lane(speaker.encoded[1:], embed(codes[None, :1], drop_code=True)[0, :1], silence))
        return lanes

    def _velocities(self, rows: Sequence[MelRow], evaluations: Sequence[Evaluation]) -> list[torch.Tensor]:
        """Return the velocity [T, mel] of each row's (time, state), in one forward."""
        dit = self._dit
        packing = self._packing(tuple(row.shape for row in rows))
        times = torch.stack([time for time, _ in evaluations]).to(self._device)
        time_embeds = dit.time_embed(times)  # [R, E]
        states = zip(rows, (state for _, state in evaluations), strict=True)
        inputs = torch.cat([lane.inputs(state) for row, state in states for lane in row.lanes])
        hidden = dit.input_embed.proj(inputs)  # [F, E]
        for layer in dit.transformer_blocks:
            hidden = _layer(layer, hidden, time_embeds, packing)
        scale, shift = _modulation(dit.norm_out, time_embeds, packing, 2)
        predictions = dit.proj_out(dit.norm_out.norm(hidden) * (1 + scale) + shift).split(packing.frames)
        return [row.guide(prediction) for row, prediction in zip(rows, predictions, strict=True)]


def _layer(layer: Any, hidden: torch.Tensor, time_embeds: torch.Tensor, packing: _Packing) -> torch.Tensor:
    """Compute ``DiTDecoderLayer.forward`` with attention from block to block: [F, E] → [F, E]."""
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = _modulation(layer.attn_norm, time_embeds, packing, 6)
    window = packing.windows[layer.look_backward_block, layer.look_ahead_block]
    norm = layer.attn_norm.norm(hidden) * (1 + scale) + shift
    hidden = hidden + gate * _attention(layer.attn, norm, window, packing)
    norm = layer.ff_norm(hidden) * (1 + mlp_scale) + mlp_shift
    result: torch.Tensor = hidden + mlp_gate * layer.ff(norm)
    return result


def _modulation(norm: Any, time_embeds: torch.Tensor, packing: _Packing, parts: int) -> Sequence[torch.Tensor]:
    """Return the vectors by which a row's time changes its frames, [F, E] each, or [1, E] of one row."""
    of_rows: torch.Tensor = norm.linear(norm.silu(time_embeds))
    of_frames = of_rows if len(of_rows) == 1 else of_rows.index_select(0, packing.row_of_frame)
    return of_frames.chunk(parts, dim=1)


def _attention(attention: Any, hidden: torch.Tensor, window: _Surroundings, packing: _Packing) -> torch.Tensor:
    """Compute ``DiTAttention.forward`` of each block's queries with its window's keys: [F, E] → [F, E]."""
    query, key, value = (
        project(hidden).unflatten(-1, (attention.heads, -1))
        for project in (attention.to_q, attention.to_k, attention.to_v)
    )  # [F, heads, D]
    # Only the first head has rotary positions; the model was trained so.
    query[:, :1] = _rotate(query[:, :1], packing.rotation)
    key[:, :1] = _rotate(key[:, :1], packing.rotation)
    attended = functional.scaled_dot_product_attention(
        packing.windows[0, 0].gather(query),
        window.gather(key),
        window.gather(value),
        attn_mask=window.visible[:, None, None],  # [N, 1, 1, W]
    )  # [N, heads, S, D]
    in_blocks = attended.transpose(1, 2).reshape(-1, attention.heads * attended.shape[-1])
    result: torch.Tensor = attention.to_out[0](in_blocks[packing.unfilled])
    return result


@dataclass(frozen=True, slots=True)
class _Packing:
    """Where the frames of some rows lie in one forward."""

    frames: list[int]  # of each row, in all its lanes
    row_of_frame: torch.Tensor  # int64 [F] in 0 … R
    rotation: tuple[torch.Tensor, torch.Tensor]  # [F, 1, D]: cosines and sines of the rotary positions
    windows: dict[tuple[int, int], _Surroundings]  # by the blocks back and ahead
    unfilled: torch.Tensor  # int64 [F] in 0 … N x S: the frames in their blocks

    @classmethod
    def of(cls, dit: Any, device: torch.device, shapes: Sequence[tuple[int, int]]) -> _Packing:
        """Compute the packing of rows of these shapes (G, T)."""
        frames = [lanes * length for lanes, length in shapes]
        lengths = [length for lanes, length in shapes for _ in range(lanes)]
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        cos, sin = dit.rotary_embed(torch.empty(0, device=device), positions[None])
        reaches = {(0, 0)} | {(layer.look_backward_block, layer.look_ahead_block) for layer in dit.transformer_blocks}
        block = int(dit.block_size)
        windows = {(back, ahead): _Surroundings.of(lengths, block, back, ahead, device) for back, ahead in reaches}
        return cls(
            frames,
            torch.repeat_interleave(torch.tensor(frames)).to(device),
            (cos[0, :, None], sin[0, :, None]),
            windows,
            torch.nonzero(windows[0, 0].visible.flatten())[:, 0],
        )


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The W frames that each of N blocks attends to: its own, and those of some blocks back and ahead."""

    frames: torch.Tensor  # int64 [N, W] in 0 … F
    visible: torch.Tensor  # bool [N, W]: inside the block's own lane

    @classmethod
    def of(cls, lanes: Sequence[int], block: int, back: int, ahead: int, device: torch.device) -> _Surroundings:
        """Compute the windows of all blocks; ``lanes`` has the frames of each lane, ``block`` the frames of a block."""
        around = torch.arange(-back * block, (1 + ahead) * block)
        frames, visible, begin = [], [], 0
        for length in lanes:
            within = torch.arange(0, length, block)[:, None] + around  # [N of the lane, W]
            frames.append(begin + within.clamp(0, length - 1))
            visible.append((within >= 0) & (within < length))
            begin += length
        return cls(torch.cat(frames).to(device), torch.cat(visible).to(device))

    def gather(self, heads: torch.Tensor) -> torch.Tensor:
        """Collect each block's window: [F, heads, D] → [N, heads, W, D]."""
        gathered = heads.index_select(0, self.frames.flatten())
        return gathered.view(*self.frames.shape, *heads.shape[1:]).transpose(1, 2)


def _rotate(head: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply rotary positions to [F, 1, D] as Transformers does: neighbouring pairs in, halves out."""
    cos, sin = rotation
    even, odd = head[..., 0::2], head[..., 1::2]
    return torch.cat([even, odd], dim=-1) * cos + torch.cat([-odd, even], dim=-1) * sin


def _time_grid(parameters: OdeParameters) -> torch.Tensor:
    """Return the times of the ODE, float32 [steps] from 0 to 1, with the sway sampling of F5-TTS."""
    times = torch.linspace(0, 1, parameters.steps)
    return times + parameters.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)
