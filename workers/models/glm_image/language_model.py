"""GLM-Image's language model as a vLLM model: image tokens of a text, in two grids, or of a text and pictures, in one.

The layers are GLM-4's, but for the rotary positions: M-RoPE in halves instead of pairs. The prompt is a text that ends
in the sizes of the grids and the mark that begins a picture. A text's positions count on. A token of a grid has the
position of the grid's begin in time, that and its row in height, that and its column in width; the next grid begins
after the longer side. A source picture stands in the prompt as a grid of image tokens, with such positions; the text
goes on after it. Source: Transformers' ``GlmImageModel.get_rope_index``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.glm4 import Glm4DecoderLayer
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsPP
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer, WeightsMapper, maybe_prefix

from omni_jobs.errors import ModelError
from workers.runners.ar.model_interface import InformedRows

_ROPE_CACHE_FACTOR = 4  # vLLM's MRotaryEmbedding holds 4 times max_position_embeddings


class GlmImageDecoderLayer(Glm4DecoderLayer):
    """GLM-4's layer, whose rotary embedding turns the halves of a head."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__(vllm_config, prefix, config)
        config = config or vllm_config.model_config.hf_config
        self.self_attn.rotary_emb = get_rope(
            self.self_attn.head_dim,
            max_position=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
            is_neox_style=True,
        )


# The positions have the shape [3, n], so their last dimension is the dynamic one.
@support_torch_compile(
    dynamic_arg_dims={
        "input_ids": {0: "b"},
        "positions": {-1: "b"},
        "intermediate_tensors": {0: "b"},
        "inputs_embeds": {0: "b"},
    }
)
class GlmImageLayers(LlamaModel):
    """The embeddings of text and image tokens, the layers and the final norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=GlmImageDecoderLayer)


class GlmImageLanguageModel(nn.Module, SupportsMRoPE, SupportsPP):
    """The vLLM model class. Implements ``SupportsAdditionalInformation`` of ``workers.runners.ar``.

    A request gives ``grids`` int64 [n, 2]: rows and columns of each grid, in the order in which they are written. It
    may give ``sources`` int64 [m, 3]: where in the prompt each source picture's grid begins, its rows and its columns.
    """

    packed_modules_mapping = {  # noqa: RUF012 — vLLM reads it from the class
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_up_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"model.language_model.": "model.", "model.visual.": None, "model.vqmodel.": None}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self.model = GlmImageLayers(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head: nn.Module = PPMissingLayer()  # type: ignore[no-untyped-call]
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                self.config.vision_vocab_size,
                self.config.hidden_size,
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "lm_head"),
            )
        # Of the logits it keeps the codebook's: the marks of a picture and ids that nothing uses are never written.
        self.logits_processor = LogitsProcessor(self.config.vision_vocab_size, self.config.codebook_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    # Positions

    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> tuple[torch.Tensor, int]:
        """Return the M-RoPE positions of prompt and grids, int64 [3, P + N], and the delta behind them.

        Raise ModelError naming what does not fit.
        """
        grids = information.get("grids")
        if not isinstance(grids, torch.Tensor) or grids.dtype != torch.int64 or grids.ndim != 2 or grids.shape[1] != 2:
            raise ModelError("int64 [n, 2] is due", field="grids")
        if not len(grids) or int(grids.min()) < 1:
            raise ModelError("a grid without tokens", field="grids")
        tokens = prompt_tokens + int(grids.prod(dim=1).sum())
        if tokens > self._max_model_len:
            raise ModelError(f"{tokens} tokens with the prompt; the model takes {self._max_model_len}", field="grids")
        parts, begin = _prompt_positions(_sources(information, prompt_tokens), prompt_tokens)
        for height, width in grids.tolist():
            parts.append(grid_positions(begin, height, width))
            begin += max(height, width)
        if begin > _ROPE_CACHE_FACTOR * self.config.max_position_embeddings:
            raise ModelError(f"positions up to {begin}", field="grids")
        return torch.cat(parts, dim=1), begin - tokens

    def information_positions(self, loaded: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        """Return what ``load_information`` has computed."""
        return loaded

    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        """Leave the embeddings as they are: the grids decide positions alone."""

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        """Return positions 0, 1, … as int64 [3, P] and delta 0; for a request without grids, such as vLLM's own."""
        del mm_features
        return torch.arange(len(input_tokens)).expand(3, -1), 0

    # Forward, logits and weights

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [n, H] of text and image tokens."""
        embeds: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """Return the last hidden states [n, H] of tokens at ``positions`` int64 [3, n]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return the logits [n, vocabulary size], -inf for all but image tokens; None when this rank has none."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        if logits is None:
            return None
        # vLLM's sampler takes the size of the prompts' vocabulary for that of the logits.
        return functional.pad(logits, (0, self.config.vocab_size - logits.shape[1]), value=float("-inf"))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the language model's part of the checkpoint's ``weights``; return the names of those loaded."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded


def _sources(information: Mapping[str, Any], prompt_tokens: int) -> list[list[int]]:
    """Return begin, rows and columns of each source picture. Raise ModelError for what is no part of the prompt."""
    sources = information.get("sources", torch.zeros(0, 3, dtype=torch.int64))
    if not isinstance(sources, torch.Tensor) or sources.dtype != torch.int64 or sources.shape[1:] != (3,):
        raise ModelError("int64 [m, 3] is due", field="sources")
    end = 0
    for begin, height, width in sources.tolist():
        if begin < end or min(height, width) < 1 or begin + height * width > prompt_tokens:
            message = f"{height} x {width} tokens from {begin} on, after {end} of {prompt_tokens}"
            raise ModelError(message, field="sources")
        end = begin + height * width
    found: list[list[int]] = sources.tolist()
    return found


def _prompt_positions(sources: Sequence[Sequence[int]], prompt_tokens: int) -> tuple[list[torch.Tensor], int]:
    """Return the M-RoPE positions of a prompt's texts and source pictures, int64 [3, …] each, and the next position."""
    parts: list[torch.Tensor] = []
    index = position = 0
    for begin, height, width in sources:
        parts.append(text_positions(position, begin - index))
        position += begin - index
        parts.append(grid_positions(position, height, width))
        position += max(height, width)
        index = begin + height * width
    parts.append(text_positions(position, prompt_tokens - index))
    return parts, position + prompt_tokens - index


def text_positions(begin: int, tokens: int) -> torch.Tensor:
    """Return the M-RoPE positions of a text's tokens, int64 [3, tokens]."""
    return torch.arange(begin, begin + tokens).expand(3, -1)


def grid_positions(begin: int, height: int, width: int) -> torch.Tensor:
    """Return the M-RoPE positions of a grid's tokens, row by row, int64 [3, height * width]."""
    rows, columns = torch.arange(height), torch.arange(width)
    return begin + torch.stack(
        [torch.zeros(height * width, dtype=torch.int64), rows.repeat_interleave(width), columns.repeat(height)]
    )
