"""Llama with additional information: a tint per request, and a drift per generated token.

The input at position p of a prompt of P tokens is

    embed(token) + tint + (drift[min(p - P, last)] if p >= P else 0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.models.llama import LlamaForCausalLM

from omni_jobs.errors import ModelError
from workers.runners.ar.model_interface import InformedRows
from workers.runners.ar.row_layout import RowKind
from workers.stages.types import TensorTree

__all__ = ["TintedLlamaForCausalLM"]


@dataclass(frozen=True, slots=True)
class _Tint:
    """One request's information, on the model's device."""

    tint: torch.Tensor  # [H]
    drift: torch.Tensor  # [T, H]
    prompt_tokens: int

    def at(self, position: int, count: int) -> torch.Tensor:
        """[count, H]: what is added from ``position`` on."""
        drifted = torch.arange(position, position + count, device=self.tint.device) - self.prompt_tokens
        rows = self.drift[drifted.clamp(0, len(self.drift) - 1)]
        return self.tint + rows.masked_fill((drifted < 0)[:, None], 0)


class TintedLlamaForCausalLM(LlamaForCausalLM):
    """Implements the three protocols of ``workers.runners.ar.model_interface``."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states [n, H], and the largest number of each half of theirs, float32 [n, 2]."""
        hidden: torch.Tensor = super().forward(*args, **kwargs)
        return hidden, torch.stack([half.amax(dim=1) for half in hidden.float().chunk(2, dim=1)], dim=1)

    def step_outputs(self) -> list[RowKind]:
        """``peaks`` of each position, and ``spread`` of those whose samples are the answer."""
        return [RowKind("peaks", torch.float32, (2,)), RowKind("spread", torch.float64, of_prompt=False)]

    def extract_multimodal_outputs(
        self, hidden_states: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden, peaks = hidden_states
        return hidden, {"peaks": peaks, "spread": peaks.double().diff(dim=1)[:, 0]}

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> _Tint:
        """``tint`` float [H], ``drift`` float [T, H]. Raises ModelError naming the field that does not fit."""
        size = self.config.hidden_size
        tint, drift = information.get("tint"), information.get("drift")
        if not isinstance(tint, torch.Tensor) or tint.shape != (size,) or not tint.is_floating_point():
            raise ModelError(f"float [{size}] is due", field="tint")
        if not isinstance(drift, torch.Tensor) or drift.ndim != 2 or drift.shape[1] != size or not len(drift):
            raise ModelError(f"float [T, {size}] is due, T at least 1", field="drift")
        weight = self.model.embed_tokens.weight
        return _Tint(tint.to(weight), drift.to(weight), prompt_tokens)

    def information_positions(self, loaded: _Tint) -> None:
        """Llama counts its positions itself."""

    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        for rows in step:
            embeds[rows.begin : rows.end] += rows.information.at(rows.position, rows.end - rows.begin)

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> dict[str, TensorTree]:
        """Tensors [H] and [P + N - 1], a list of tensors per eight rows, a dict of tensors per part."""
        return {
            "mean": rows.mean(dim=0),
            "norms": rows.norm(dim=1),
            "per_eight": [part.mean(dim=0) for part in rows.split(8)],
            "per_part": {"prompt": rows[:prompt_tokens].mean(dim=0), "answer": rows[prompt_tokens - 1 :].mean(dim=0)},
        }
