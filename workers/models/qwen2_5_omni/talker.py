"""Qwen2.5-Omni's talker as a vLLM model: codec tokens from the thinker's hidden states.

Source of the formulas: Transformers' ``Qwen2_5OmniTalkerForConditionalGeneration.forward``.
The prompt is ``[codec mask] * P + [codec pad, codec bos]``; the input at position p is

    proj((codec_embed(token) if p >= P else 0) + feed[min(p, last)])

where the ``thinker2talker`` input processor makes the feed. proj is linear, so the
codec embedding table is projected once at load and the feed once per request. Then a step costs one addition,
and vLLM's buffers have the talker's own hidden size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_jobs.errors import ModelError
from workers.models.qwen2_5_omni.prompts import CODEC_PROMPT_TOKENS
from workers.models.talkers.informed_talker import (
    DYNAMIC_DIMS,
    InformedTalker,
    positions_of,
    rows_of,
    weights_of_talker,
)
from workers.runners.ar.model_interface import InformedRows

_CODEC_EMBEDDING = "model.embed_tokens.weight"
_PROJECTION = "thinker_to_talker_proj."


@dataclass(frozen=True, slots=True)
class _Feed:
    """One request's loaded information: its feed, projected and on the model's device, and its positions."""

    rows: torch.Tensor  # [T, talker hidden size]
    first_codec: int  # P: the first position with a codec embedding
    positions: torch.Tensor  # int64 [3, P + 2]
    delta: int

    def at(self, position: int, count: int) -> torch.Tensor:
        """Return the rows [count, H] from ``position`` on; beyond the feed's end the last row repeats."""
        last = len(self.rows) - 1
        if position + count <= last + 1:
            return self.rows[position : position + count]
        begin = min(position, last)
        rows = self.rows[begin : begin + count]
        return torch.cat([rows, self.rows[last:].expand(count - len(rows), -1)])


@support_torch_compile(dynamic_arg_dims=DYNAMIC_DIMS)
class Qwen2_5OmniTalkerModel(LlamaModel):
    """The talker's layers: Llama's with a bias on q, k, v (``config.qkv_bias``), and M-RoPE (``rope_parameters``)."""


class Qwen2_5OmniTalkerForConditionalGeneration(LlamaForCausalLM, InformedTalker):
    """The talker as vLLM's model class. Implements ``SupportsAdditionalInformation`` of ``workers.runners.ar``.

    A request gives ``feed`` float [T, embedding size], ``mrope_positions`` int64 [3, P + 2], ``mrope_delta`` int.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self.thinker_to_talker_proj = nn.Linear(self.config.embedding_size, self.config.hidden_size)

    def _init_model(
        self, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] = LlamaDecoderLayer
    ) -> Any:
        return Qwen2_5OmniTalkerModel(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)

    # Additional information

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> _Feed:
        """Check one request's information and project its feed. Raise ModelError naming the field that is wrong."""
        feed = rows_of(information, "feed", self.config.embedding_size)
        if len(feed) < prompt_tokens or prompt_tokens <= CODEC_PROMPT_TOKENS:
            raise ModelError(f"{len(feed)} rows for a prompt of {prompt_tokens} tokens", field="feed")
        positions, delta = positions_of(
            information, prompt_tokens, self._max_model_len, self.config.max_position_embeddings
        )
        weight = self.thinker_to_talker_proj.weight
        rows = self.thinker_to_talker_proj(feed.to(weight.device, weight.dtype))
        return _Feed(rows, prompt_tokens - CODEC_PROMPT_TOKENS, positions, delta)

    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        """Add the feed in place to ``embeds`` [n, H]: projected codec embeddings, zeroed where the prompt is masked."""
        feeds = []
        for rows in step:
            feed: _Feed = rows.information
            masked = min(rows.end - rows.begin, feed.first_codec - rows.position)
            if masked > 0:
                embeds[rows.begin : rows.begin + masked] = 0
            feeds.append(feed.at(rows.position, rows.end - rows.begin))
        if all(left.end == right.begin for left, right in pairwise(step)):
            embeds[step[0].begin : step[-1].end] += torch.cat(feeds)
            return
        for rows, feed_rows in zip(step, feeds, strict=True):
            embeds[rows.begin : rows.end] += feed_rows

    # Logits and weights

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return the logits, codec BOS at -inf (Transformers: ``suppress_tokens``); None when this rank has none."""
        logits: torch.Tensor | None = super().compute_logits(hidden_states)
        if logits is not None:
            logits[:, self.config.tts_codec_start_token_id] = float("-inf")
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the talker's part of a whole checkpoint's ``weights``; return the names of those loaded.

        Raise ValueError when the codec embedding table or the projection is missing.
        """
        mapper = WeightsMapper(orig_to_new_prefix={"codec_head.": "lm_head."})
        loaded: set[str] = AutoWeightsLoader(self).load_weights(self._projected(weights), mapper=mapper)
        return loaded

    def _projected(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the talker's weights, with the codec embedding table [V, E] projected: [V, E] · Wᵀ.

        Raise ValueError when the table or the projection is missing.
        """
        embedding: torch.Tensor | None = None
        projection: torch.Tensor | None = None
        for name, weight in weights_of_talker(weights):
            if name == _CODEC_EMBEDDING:
                embedding = weight
                continue
            if name == f"{_PROJECTION}weight":
                projection = weight
            yield name, weight
        if embedding is None or projection is None:
            raise ValueError(f"the checkpoint's talker lacks {_CODEC_EMBEDDING} or {_PROJECTION}weight")
        yield _CODEC_EMBEDDING, (embedding.float() @ projection.float().T).to(embedding.dtype)
