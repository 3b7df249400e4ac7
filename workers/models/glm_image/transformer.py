"""``Transformer``: GLM-Image's diffusion transformer, for rows of which each has its own time, text and tokens.

It runs the layers of Diffusers' ``GlmImageTransformer2DModel``. Two things differ from that model's ``forward``. What
does not change from step to step is computed once, as a ``Condition``. And texts and source pictures of different
lengths are padded under a mask that hides the padding; Diffusers adds its mask to the scores as 0 and 1, so that
padding counts almost as much as text.

A source picture goes through the layers once, alone and as if it were denoised to the end. Each layer's keys and values
of its patches are kept, and a picture that is an edit of it attends to them at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_glm_image import (
    GlmImageAttnProcessor,
    GlmImageKVCache,
    GlmImageLayerKVCache,
)

from workers.models.pictures.compact_transformer import offloaded
from workers.models.pictures.vae import LATENT

Memory = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""What the layers keep of source pictures with S patches: each its keys and values [1, S, heads, head size]."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What one picture is drawn of, as the layers take it.

    text     [1, T, H]
    prior    [1, N, H]: of the image tokens, one for each of the N patches
    sources  the memory of source pictures; empty: there are none
    """

    text: torch.Tensor
    prior: torch.Tensor
    sources: Memory = ()

    @property
    def source_patches(self) -> int:
        """The patches of all source pictures: S."""
        return self.sources[0][0].shape[1] if self.sources else 0

    @property
    def keys(self) -> int:
        """What a patch attends to: S + T + N."""
        return self.source_patches + self.text.shape[1] + self.prior.shape[1]


class MaskedAttention(GlmImageAttnProcessor):
    """Diffusers' attention for this model, with a mask bool [B, 1, 1, S + T + N] that hides keys."""

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
        if kv_cache is not None:
            key, value = kv_cache.get(key, value)
        states = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend)
        states = attn.to_out[0](states.flatten(2, 3).to(query.dtype))
        return states[:, texts:], states[:, :texts]


class SourcesOfRows:
    """What one layer has kept for the rows of a step. Diffusers' attention reads it as its own cache.

    A row with fewer patches of sources than another, or none, is padded.
    """

    mode = "read"

    def __init__(self, memories: Sequence[Memory], layer: int) -> None:
        self._rows = [memory[layer] if memory else None for memory in memories]

    def get(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [B, T + N, heads, head size] with those of the sources before them."""
        longest = max(0 if row is None else row[0].shape[1] for row in self._rows)
        both = []
        for number, own in enumerate((key, value)):
            joined = own.new_zeros(len(own), longest + own.shape[1], *own.shape[2:])
            joined[:, longest:] = own
            for place, row in zip(joined, self._rows, strict=True):
                if row is not None:
                    place[: row[number].shape[1]] = row[number][0]
            both.append(joined)
        return both[0], both[1]


_OF_LAYERS = ("transformer_blocks", "image_projector", "time_condition_embed")  # of the model: what ``_layers`` runs


class Transformer:
    """The transformer of a checkpoint, which computes on one device."""

    def __init__(self, model: Any, device: torch.device | None = None) -> None:
        """Take Diffusers' model. ``device`` is where it computes; None: where the model is."""
        self._model = model
        self.network: torch.nn.Module = model
        self.device: torch.device = device or model.device
        self.dtype: torch.dtype = model.dtype
        self.channels: int = model.config.in_channels
        self.codebook: int = model.config.prior_vq_quantizer_codebook_size
        self.patch: int = model.config.patch_size
        for block in model.transformer_blocks:
            block.attn1.set_processor(MaskedAttention())  # type: ignore[no-untyped-call]
        self._rotary = lru_cache(maxsize=16)(self._new_rotary)
        self._layers: Callable[..., tuple[torch.Tensor, torch.Tensor]] = self._run_layers

    def offload(self) -> None:
        """Let the blocks, which are in host memory, come to the device when they compute. The other parts stay there.

        Diffusers' own offloading is by the forward of its model, which is not run here.
        """
        parts = dict(self._model.named_children())
        for name, part in parts.items():
            if name not in _OF_LAYERS:
                part.to(self.device)
        self._layers = offloaded({name: parts[name] for name in _OF_LAYERS}, self._run_layers, self.device)

    def condition(
        self, glyphs: torch.Tensor, image_tokens: torch.Tensor | None, patches: int, sources: Memory = ()
    ) -> Condition:
        """Return the condition of embedded glyph texts [1, T, E], image tokens int64 [patches] and source pictures.

        None: of a picture that is drawn without the prompt, whose tokens are dropped.
        """
        ids = torch.zeros(1, patches, dtype=torch.int64) if image_tokens is None else image_tokens[None]
        prior = self._model.prior_token_embedding(ids.to(self.device))
        if image_tokens is None:
            prior = prior * 0.0
        return Condition(
            self._model.glyph_projector(glyphs.to(self.device, self.dtype)), self._model.prior_projector(prior), sources
        )

    def memory(self, sources: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Memory:
        """Return what the layers keep of source pictures: image tokens int64 [patches] and latents [C, h, w] of each.

        No picture sees another.
        """
        model = self._model
        kept: Any = GlmImageKVCache(len(model.transformer_blocks))
        kept.set_mode("write")
        for image_tokens, latents in sources:
            height, width = latents.shape[1:]
            texts = torch.zeros(1, 0, model.config.text_embed_dim, device=self.device, dtype=self.dtype)
            condition = self.condition(texts, image_tokens, len(image_tokens))
            size = (height * LATENT, width * LATENT)
            self._layers(latents[None], condition.prior, condition.text, torch.zeros(1), size, None, kept.caches)
        return [(layer.k_caches[0], layer.v_caches[0]) for layer in kept.caches] if sources else ()

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
        prior = torch.cat([each.prior for each in conditions])
        texts, mask = _padded(conditions)
        memories = [each.sources for each in conditions]
        caches = [
            SourcesOfRows(memories, layer) if any(memories) else None for layer in range(len(model.transformer_blocks))
        ]
        patches, times_and_sizes = self._layers(latents, prior, texts, times, size, mask, caches)
        patches = model.proj_out(model.norm_out(patches, times_and_sizes))
        side = self.patch
        patches = patches.reshape(batch, height // side, width // side, -1, side, side)
        velocities: torch.Tensor = patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return velocities.float()

    def _run_layers(
        self,
        latents: torch.Tensor,
        prior: torch.Tensor,
        texts: torch.Tensor,
        times: torch.Tensor,
        size: tuple[int, int],
        mask: torch.Tensor | None,
        caches: Sequence[GlmImageLayerKVCache | SourcesOfRows | None],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the patches [B, N, H] behind the last layer, and the embeddings [B, E] of times and sizes."""
        model = self._model
        patches = model.image_projector(latents.to(self.device, self.dtype)) + prior
        sizes = torch.tensor([size], dtype=torch.float32, device=self.device).repeat(len(latents), 1)
        times_and_sizes = model.time_condition_embed(times.to(self.device), sizes, torch.zeros_like(sizes), self.dtype)
        rotary = self._rotary(*latents.shape[2:])
        for block, cache in zip(model.transformer_blocks, caches, strict=True):
            patches, texts = block(patches, texts, times_and_sizes, rotary, mask, kv_cache=cache)
        return patches, times_and_sizes

    def _new_rotary(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the positions of latents [h, w]."""
        cosines, sines = self._model.rope(torch.empty(1, self.channels, height, width, device="meta"))
        return cosines.to(self.device), sines.to(self.device)


def _padded(conditions: Sequence[Condition]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the texts as one tensor [B, longest T, H], and the mask of keys; None where nothing is padded."""
    texts = [each.text for each in conditions]
    lengths = [text.shape[1] for text in texts]
    source_lengths = [each.source_patches for each in conditions]
    longest, most, patches = max(lengths), max(source_lengths), conditions[0].prior.shape[1]
    if min(lengths) == longest and min(source_lengths) == most:
        return torch.cat(texts), None
    padded = texts[0].new_zeros(len(texts), longest, texts[0].shape[2])
    for row, text in zip(padded, texts, strict=True):
        row[: text.shape[1]] = text[0]
    keys = torch.arange(most + longest + patches)
    of_sources = keys < torch.tensor(source_lengths)[:, None]
    of_texts = (keys >= most) & (keys < most + torch.tensor(lengths)[:, None])
    visible = of_sources | of_texts | (keys >= most + longest)
    return padded, visible[:, None, None].to(padded.device)
