"""``Transformer``: GLM-Image's diffusion transformer, for rows of which each has its own time, text and tokens.

It runs the layers of Diffusers' ``GlmImageTransformer2DModel``. Two things differ from that model's ``forward``. What
does not change from step to step is computed once, as a ``Condition``. And texts of different lengths are padded under
a mask that hides the padding; Diffusers adds its mask to the scores as 0 and 1, so that padding counts almost as much
as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_glm_image import GlmImageAttnProcessor


@dataclass(frozen=True, slots=True)
class Condition:
    """What one picture is drawn of, as the layers take it.

    text   [1, T, H]
    prior  [1, N, H]: of the image tokens, one for each of the N patches
    """

    text: torch.Tensor
    prior: torch.Tensor


class MaskedAttention(GlmImageAttnProcessor):
    """Diffusers' attention for this model, with a mask bool [B, 1, 1, T + N] that hides keys."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
        kv_cache: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if attention_mask is None:
            answer: tuple[torch.Tensor, torch.Tensor] = super().__call__(
                attn, hidden_states, encoder_hidden_states, None, image_rotary_emb, kv_cache
            )
            return answer
        texts = encoder_hidden_states.shape[1]
        joined = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        query, key, value = (each(joined).unflatten(2, (attn.heads, -1)) for each in (attn.to_q, attn.to_k, attn.to_v))
        query, key = attn.norm_q(query).to(joined.dtype), attn.norm_k(key).to(joined.dtype)
        for each in (query, key):
            each[:, texts:] = apply_rotary_emb(
                each[:, texts:], image_rotary_emb, sequence_dim=1, use_real_unbind_dim=-2
            )
        states = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend)
        states = attn.to_out[0](states.flatten(2, 3).to(query.dtype))
        return states[:, texts:], states[:, :texts]


class Transformer:
    """The transformer of a checkpoint on one device."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.channels: int = model.config.in_channels
        self.codebook: int = model.config.prior_vq_quantizer_codebook_size
        self.patch: int = model.config.patch_size
        for block in model.transformer_blocks:
            block.attn1.set_processor(MaskedAttention())  # type: ignore[no-untyped-call]
        self._rotary = lru_cache(maxsize=16)(self._new_rotary)

    def condition(self, glyphs: torch.Tensor, image_tokens: torch.Tensor | None, patches: int) -> Condition:
        """Return the condition of embedded glyph texts [1, T, E] and image tokens int64 [patches].

        None: of a picture that is drawn without the prompt, whose tokens are dropped.
        """
        ids = torch.zeros(1, patches, dtype=torch.int64) if image_tokens is None else image_tokens[None]
        prior = self._model.prior_token_embedding(ids.to(self.device))
        if image_tokens is None:
            prior = prior * 0.0
        return Condition(
            self._model.glyph_projector(glyphs.to(self.device, self.dtype)), self._model.prior_projector(prior)
        )

    def velocities(
        self,
        latents: torch.Tensor,
        conditions: Sequence[Condition],
        times: torch.Tensor,
        size: tuple[int, int],
    ) -> torch.Tensor:
        """Return where each of the latents [B, C, h, w] goes, float32 of their shape.

        One condition and one time of ``times`` float32 [B] for each. ``size``: all pictures' height and width in
        pixels.
        """
        model = self._model
        batch, _, height, width = latents.shape
        patches = model.image_projector(latents.to(self.dtype)) + torch.cat([each.prior for each in conditions])
        texts, mask = _padded([each.text for each in conditions], patches.shape[1])
        sizes = torch.tensor([size], dtype=torch.float32, device=self.device).repeat(batch, 1)
        times_and_sizes = model.time_condition_embed(times, sizes, torch.zeros_like(sizes), self.dtype)
        rotary = self._rotary(height, width)
        for block in model.transformer_blocks:
            patches, texts = block(patches, texts, times_and_sizes, rotary, mask)
        patches = model.proj_out(model.norm_out(patches, times_and_sizes))
        side = self.patch
        patches = patches.reshape(batch, height // side, width // side, -1, side, side)
        velocities: torch.Tensor = patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return velocities.float()

    def _new_rotary(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the positions of latents [h, w]."""
        cosines, sines = self._model.rope(torch.empty(1, self.channels, height, width, device="meta"))
        return cosines.to(self.device), sines.to(self.device)


def _padded(texts: Sequence[torch.Tensor], patches: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return texts [1, T, H] as one tensor [B, longest T, H], and the mask of keys; None where no text is padded."""
    lengths = [text.shape[1] for text in texts]
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.cat(list(texts)), None
    padded = texts[0].new_zeros(len(texts), longest, texts[0].shape[2])
    for row, text in zip(padded, texts, strict=True):
        row[: text.shape[1]] = text[0]
    keys = torch.arange(longest + patches)
    visible = (keys < torch.tensor(lengths)[:, None]) | (keys >= longest)
    return padded, visible[:, None, None].to(padded.device)
