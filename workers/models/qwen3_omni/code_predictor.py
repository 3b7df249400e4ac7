"""``CodePredictor``: the fifteen further codes of a frame, from its first code and the talker's hidden states.

A small causal transformer reads the talker's last hidden states and the embedding of the first code, and then its own
codes one by one; each has a codebook, an embedding table and a head of its own.

Source: Transformers' ``Qwen3OmniMoeTalkerForConditionalGeneration.prepare_inputs_for_generation``; its module computes
here, too. A frame's randomness comes of the job's seed and the frame's number alone, so that it does not depend on the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """How a request's further codes are chosen: the likeliest with temperature 0, else one of those that remain."""

    temperature: float
    top_k: int  # 0: all
    top_p: float
    seed: int

    def draws(self, frame: int, number: int) -> torch.Tensor:
        """Return float32 [number] in 0 … 1, which decide the codes of the request's ``frame``."""
        # torch's generator on a CPU takes no more than 32 bits of a seed.
        random = np.random.Generator(np.random.PCG64([frame, self.seed % (1 << 64)]))
        return torch.from_numpy(random.random(number, dtype=np.float32))

    def pick(self, logits: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
        """Return the code int64 [] that ``draw`` [] decides, of logits [V]."""
        ordered, codes = (logits.float() / self.temperature).sort(descending=True)
        if self.top_k:
            ordered, codes = ordered[: self.top_k], codes[: self.top_k]
        likely = ordered.softmax(dim=0)
        before = likely.cumsum(dim=0) - likely
        likely = likely.masked_fill(before > self.top_p, 0)
        reached = likely.cumsum(dim=0)
        at = torch.searchsorted(reached, draw * reached[-1], right=True)
        return codes[at.clamp(max=len(codes) - 1)]


class CodePredictor(nn.Module):
    """Transformers' code predictor of a talker. Its parameters have the names of the checkpoint's."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        from transformers import Qwen3OmniMoeTalkerCodePredictorModel
        from transformers.initialization import no_init_weights

        config._attn_implementation = "sdpa"
        with no_init_weights():
            self.model = Qwen3OmniMoeTalkerCodePredictorModel._from_config(config, dtype=torch.get_default_dtype())
        self.codes = config.num_code_groups - 1
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(self.codes)
        )

    @torch.inference_mode()
    def predict(
        self, hidden: torch.Tensor, first: torch.Tensor, choices: Sequence[CodeChoice], frames: Sequence[int]
    ) -> torch.Tensor:
        """Return the further codes int64 [B, 15] of one frame of each of B requests.

        ``hidden`` [B, H]: the talker's last hidden states, of which the first code was sampled. ``first`` [B, H]: the
        embedding of that code. ``frames``: the number of each request's frame.
        """
        from transformers import DynamicCache

        draws = torch.stack(
            [choice.draws(frame, self.codes) for choice, frame in zip(choices, frames, strict=True)]
        ).to(hidden.device)
        cache = DynamicCache(config=self.model.config)
        inputs = torch.stack([hidden, first], dim=1)
        codes: list[torch.Tensor] = []
        for number in range(self.codes):
            out: Any = self.model(inputs_embeds=inputs, past_key_values=cache, use_cache=True)
            logits = self.lm_head[number](out.last_hidden_state[:, -1])
            codes.append(self._choose(logits, draws[:, number], choices))
            inputs = self.model.codec_embedding[number](codes[-1])[:, None]
        return torch.stack(codes, dim=1)

    def _choose(self, logits: torch.Tensor, draws: torch.Tensor, choices: Sequence[CodeChoice]) -> torch.Tensor:
        """Return the codes int64 [B] of logits [B, V]."""
        codes = logits.argmax(dim=-1)
        for row, choice in enumerate(choices):
            if choice.temperature > 0:
                codes[row] = choice.pick(logits[row], draws[row])
        return codes

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sum [n, H] of the embeddings of the further codes [n, 15]."""
        tables = self.model.codec_embedding
        return torch.stack([tables[number](codes[:, number]) for number in range(self.codes)], dim=1).sum(dim=1)
