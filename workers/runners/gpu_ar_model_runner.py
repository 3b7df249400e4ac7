"""``GPUARModelRunner``: hidden states per request, for the stages that follow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from workers.runners.captures import CAPTURE, Capture, CaptureStore, HostCopies
from workers.runners.gpu_model_runner import OmniGPUModelRunner
from workers.vllm_hooks.runner import AddedRequest, StepRows

__all__ = ["GPUARModelRunner"]

_CLOSED_PER_SLOT = 4  # captures kept for a taker, as a multiple of the requests in a batch


@dataclass(frozen=True, slots=True)
class _Kept:
    rows: list[StepRows]
    index: slice | torch.Tensor  # the rows' places on the step's token axis
    embeds: torch.Tensor  # [n, H], zeroed at media positions


class GPUARModelRunner(OmniGPUModelRunner):
    """Captures last hidden state + input embedding for the requests that ask, once per step for the whole batch.

    The embedding part is zero at audio, image and video positions of the prompt
    (Transformers: ``Qwen2_5OmniForConditionalGeneration.generate``, ``embeds_to_talker``).
    """

    def set_up(self) -> None:
        super().set_up()
        self.captures = CaptureStore(max_closed=_CLOSED_PER_SLOT * self.max_num_reqs)
        self._copies = HostCopies(self.max_step_rows())
        self.counts |= {"captured_requests": 0, "captured_rows": 0, "captured_steps": 0}

    def take(self, key: str) -> Capture | None:
        """A capture with all its rows on the host; it is no longer kept here."""
        self._copies.flush()
        return self.captures.take(key)

    def stats(self) -> dict[str, int]:
        return {
            **super().stats(),
            "host_copies": self._copies.copies,
            "held_captures": self.captures.held,
            "held_bytes": self.captures.held_bytes,
        }

    # Hooks

    def request_added(self, request: AddedRequest) -> None:
        super().request_added(request)
        key = request.options.get(CAPTURE)
        if key is None or not self.holds_output():
            return
        zeroed = np.zeros(request.prompt_tokens, dtype=np.bool_)
        for offset, embedded in request.media:
            zeroed[offset : offset + len(embedded)] |= embedded
        self.captures.open(request.request_id, Capture(key, request.prompt_tokens, zeroed))
        self.counts["captured_requests"] += 1

    def positions_known(self, request_id: str, positions: torch.Tensor, delta: int) -> None:
        super().positions_known(request_id, positions, delta)
        if request_id in self.captures:
            capture = self.captures[request_id]
            capture.positions, capture.delta = positions, delta

    def request_removed(self, request_id: str) -> None:
        super().request_removed(request_id)
        self.captures.close(request_id)

    def before_forward(self, input_ids: torch.Tensor | None, embeds: torch.Tensor | None) -> _Kept | None:
        if not self.captures:
            return None
        rows = self.step_rows(self.captures)
        if not rows:
            return None
        if embeds is None:  # a model without media embeds its tokens itself
            model: Any = self.get_model()
            embeds = model.embed_input_ids(input_ids)
        index = _index(rows, embeds.device)
        return _Kept(rows, index, self._without_media(rows, embeds[index]))

    def after_forward(self, hidden: torch.Tensor, kept: _Kept) -> None:
        parts = []
        begin = 0
        for rows in kept.rows:
            end = begin + rows.end - rows.begin
            parts.append((self.captures[rows.request_id], rows.position, begin, end))
            begin = end
        self._copies.push(hidden[kept.index] + kept.embeds, parts)
        self.counts["captured_rows"] += begin
        self.counts["captured_steps"] += 1

    def _without_media(self, rows: list[StepRows], embeds: torch.Tensor) -> torch.Tensor:
        """The rows' embeddings, zeroed at media positions; always a copy."""
        zeroed = np.zeros(len(embeds), dtype=np.bool_)
        begin = 0
        for part in rows:
            end = begin + part.end - part.begin
            of_prompt = self.captures[part.request_id].zeroed[part.position : part.position + part.end - part.begin]
            zeroed[begin : begin + len(of_prompt)] = of_prompt
            begin = end
        if not zeroed.any():
            return embeds.clone()
        return embeds.masked_fill(_to_device(zeroed, embeds.device)[:, None], 0)


def _index(rows: list[StepRows], device: torch.device) -> slice | torch.Tensor:
    """A slice where the rows lie together, as they do when every request is captured."""
    if all(left.end == right.begin for left, right in pairwise(rows)):
        return slice(rows[0].begin, rows[-1].end)
    return _to_device(np.concatenate([np.arange(part.begin, part.end) for part in rows]), device)


def _to_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
