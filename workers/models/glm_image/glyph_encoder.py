"""``GlyphEncoder``: the words that a picture is to show as embeddings, by the checkpoint's T5 encoder over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import ConfigError
from workers.models.glm_image.prompts import MOST_BYTES
from workers.models.pictures.diffusers_checkpoint import pretrained


def load_glyph_encoder(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> GlyphEncoder:
    """Return the glyph encoder of a checkpoint. Raise ConfigError naming the part that is missing or wrong."""
    from transformers import ByT5Tokenizer, T5EncoderModel

    file = str(checkpoint / "tokenizer")
    try:
        tokenizer = ByT5Tokenizer.from_pretrained(file, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"no tokenizer of bytes: {error}", file=file) from error
    problems = ("missing_keys", "mismatched_keys")
    return GlyphEncoder(
        tokenizer, pretrained(T5EncoderModel, checkpoint / "text_encoder", device, problems, dtype=dtype)
    )


class GlyphEncoder:
    """Encodes the glyph texts of a prompt. Source: ``_get_glyph_embeds`` of Diffusers' ``GlmImagePipeline``."""

    def __init__(self, tokenizer: Any, encoder: Any) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self.size: int = encoder.config.d_model
        self.without_text = self.encode([])  # the condition of a picture without the prompt

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the embeddings [1, T, E] of all tokens of the texts, one text after the other.

        Each text is encoded apart. An even number of texts gets a padding token before each, which counts as a token:
        so was the transformer trained.
        """
        ids = self._tokenizer(list(texts) or [""], max_length=MOST_BYTES, truncation=True).input_ids
        padding: int = self._tokenizer.pad_token_id
        ids = [[padding] * ((len(ids) + 1) % 2) + each for each in ids]
        longest = max(map(len, ids))
        device = self._encoder.device
        padded = torch.tensor([each + [padding] * (longest - len(each)) for each in ids], device=device)
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in ids], device=device)
        states = self._encoder(padded, attention_mask=mask).last_hidden_state
        embeds: torch.Tensor = states[mask.bool()][None]
        return embeds

    def most_tokens(self, texts: Sequence[str]) -> int:
        """Return a bound on T."""
        return sum(len(text.encode()) + 2 for text in texts) or 1
