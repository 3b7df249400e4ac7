"""``InformedTalker``: a talker as a vLLM model class, whose M-RoPE positions stand in a request's information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import torch
from vllm.model_executor.models.interfaces import SupportsMRoPE

from omni_jobs.errors import ModelError

DYNAMIC_DIMS: Final[dict[str, int | list[int] | dict[int, str]]] = {
    "input_ids": {0: "b"},
    "positions": {-1: "b"},  # they have the shape [3, n]
    "intermediate_tensors": {0: "b"},
    "inputs_embeds": {0: "b"},
}
"""The dimension of each input of a talker's layers that changes from step to step, for ``support_torch_compile``."""

_ROPE_CACHE_FACTOR = 4  # vLLM's MRotaryEmbedding holds 4 times max_position_embeddings


class LoadedPositions(Protocol):
    """Loaded information: the M-RoPE positions of a prompt, int64 [3, P], and what is added to those behind it."""

    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def delta(self) -> int: ...


class InformedTalker(SupportsMRoPE):
    """The base of talkers that implement ``SupportsAdditionalInformation`` of ``workers.runners.ar``."""

    def information_positions(self, loaded: LoadedPositions) -> tuple[torch.Tensor, int]:
        """Return the M-RoPE positions int64 [3, P] and delta of the request's information."""
        return loaded.positions, loaded.delta

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        """Return positions 0, 1, … as int64 [3, P] and delta 0; for a request without additional information."""
        del mm_features
        return torch.arange(len(input_tokens)).expand(3, -1), 0


def weights_of_talker(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the talker's among a whole checkpoint's weights, by their names within the talker."""
    for name, weight in weights:
        if name.startswith("talker."):
            yield name.removeprefix("talker."), weight


def tensor_of(information: Mapping[str, Any], name: str) -> torch.Tensor:
    """Return a tensor of the information. Raise ModelError when it is missing."""
    tensor = information.get(name)
    if not isinstance(tensor, torch.Tensor):
        raise ModelError(f"{name} is missing", field=name)
    return tensor


def rows_of(information: Mapping[str, Any], name: str, width: int) -> torch.Tensor:
    """Return rows of the thinker, float [n, width]. Raise ModelError for anything else."""
    rows = tensor_of(information, name)
    if rows.ndim != 2 or rows.shape[1] != width or not rows.is_floating_point():
        raise ModelError(f"{rows.dtype} {list(rows.shape)} where float [n, {width}] is due", field=name)
    return rows


def positions_of(
    information: Mapping[str, Any], prompt_tokens: int, max_model_len: int, max_position_embeddings: int
) -> tuple[torch.Tensor, int]:
    """Return ``mrope_positions`` int64 [3, P] and ``mrope_delta`` of the information.

    Raise ModelError for positions of another shape, for a delta that does not continue them, and where those of
    ``max_model_len`` tokens would go beyond the model's.
    """
    positions = tensor_of(information, "mrope_positions")
    if positions.shape != (3, prompt_tokens) or positions.dtype != torch.int64:
        raise ModelError(
            f"{positions.dtype} {list(positions.shape)} where int64 [3, {prompt_tokens}] is due",
            field="mrope_positions",
        )
    delta = information.get("mrope_delta")
    if delta != int(positions.max()) + 1 - prompt_tokens:
        raise ModelError(f"{delta} does not continue the positions", field="mrope_delta")
    limit = _ROPE_CACHE_FACTOR * max_position_embeddings
    if int(positions.min()) < 0 or delta + max_model_len > limit:
        raise ModelError(f"positions outside 0 … {limit - 1}", field="mrope_positions")
    return positions, delta
