"""``FilmTextEncoder``: Wan's text encoder, a umT5, as a diffusion model of one step: token ids → embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.diffusers_checkpoint import denoising_dtype, pretrained
from workers.models.wan.prompts import MAX_TEXT_TOKENS
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

EMBEDS: Mapping[str, str] = {"prompt_ids": "prompt_embeds", "negative_prompt_ids": "negative_prompt_embeds"}
"""The tensors of a prompt → those of the output."""


def load_text_encoder(model: OmniModelConfig, device: torch.device, dtype: str | None) -> FilmTextEncoder:
    """Return the text encoder of a checkpoint, in float32 on a CPU and in bfloat16 on a GPU, unless ``dtype`` says.

    Raises ConfigError naming what is missing or wrong.
    """
    from transformers import UMT5EncoderModel

    problems = ("missing_keys", "mismatched_keys")
    torch_dtype = denoising_dtype(dtype, device)
    return FilmTextEncoder(
        pretrained(UMT5EncoderModel, model.path / "text_encoder", device, problems, dtype=torch_dtype)
    )


@dataclass(slots=True)
class TextsRow:
    """The texts of one job: token ids int64 [T] on the CPU, and the embeddings [T, H] of those done."""

    ids: Mapping[str, torch.Tensor]
    embeds: dict[str, torch.Tensor] = field(default_factory=dict)
    steps_done: int = 0


class FilmTextEncoder:
    """A ``DiffusionModel``. A prompt has ``prompt_ids`` int64 [T], and maybe ``negative_prompt_ids``.

    Each text is a forward of its own, so that its embeddings are the same in any company.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.max_batch_cost = MAX_TEXT_TOKENS  # rows follow each other, so more in a step only makes each wait for all

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        """Return the tokens of the texts. Raises ModelError naming the one that does not fit."""
        if "prompt_ids" not in prompt.tensors:
            raise ModelError("there is no text", field="prompt_ids")
        return Cost(sum(len(self._ids_of(prompt, name)) for name in EMBEDS if name in prompt.tensors), 1, None)

    def begin(self, prompt: DiffusionPrompt[Any]) -> TextsRow:
        """Return the row of a prompt, with no text encoded."""
        return TextsRow({name: self._ids_of(prompt, name).clone() for name in EMBEDS if name in prompt.tensors})

    def step(self, rows: Sequence[TextsRow]) -> None:
        """Encode the texts of each row."""
        encoded = [{EMBEDS[name]: self._encoded(ids) for name, ids in row.ids.items()} for row in rows]
        for row, embeds in zip(rows, encoded, strict=True):
            row.embeds = embeds
            row.steps_done = 1

    def finish(self, rows: Sequence[TextsRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's tensors of the flow ``text_states``."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput(row.embeds)

    def _encoded(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = ids[None].to(self._encoder.device)
        states: torch.Tensor = self._encoder(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        return states[0]

    def _ids_of(self, prompt: DiffusionPrompt[Any], name: str) -> torch.Tensor:
        ids = prompt.tensors[name]
        if not isinstance(ids, torch.Tensor) or ids.dtype != torch.int64 or ids.ndim != 1:
            raise ModelError("int64 [T] is due", field=name)
        if not 1 <= len(ids) <= MAX_TEXT_TOKENS:
            raise ModelError(f"{len(ids)} tokens, where 1 to {MAX_TEXT_TOKENS} are due", field=f"{name}.shape")
        if not bool(((ids >= 0) & (ids < self._encoder.config.vocab_size)).all()):
            raise ModelError("a token is none of the vocabulary's", field=name)
        return ids
