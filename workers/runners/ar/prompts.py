"""The engine prompts of AR stages: rendered text with media, token ids, embeddings, or token ids with embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ModelError
from workers.runners.ar.parameters import ArParameters, TokenParameters
from workers.runners.ar.tool_use import ToolUse

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Embeddings that stand in a prompt of token ids, from the position ``start`` on, in place of its tokens' own.

    ``rows`` [n, H]: float, on the CPU; a row for each of n ≥ 1 positions.
    """

    start: int
    rows: torch.Tensor

    @property
    def end(self) -> int:
        """The position behind its last."""
        return self.start + len(self.rows)


@dataclass(frozen=True, slots=True)
class OmniTextPrompt:
    """The engine prompt of a first AR stage as rendered text, which vLLM tokenizes, with decoded media.

    ``multi_modal_data`` is in vLLM's form: ``audio``: [(float32 [T], sampling rate)], ``image``:
    [PIL.Image], ``video``: [(uint8 [F, H, W, 3], metadata)]. ``tools``: those that the text tells of.
    """

    prompt: str
    multi_modal_data: Mapping[str, Any]
    parameters: ArParameters
    seed: int
    capture: bool
    tools: ToolUse | None = None

    def for_vllm(self, hidden_size: int) -> dict[str, Any]:
        """Return the prompt as vLLM takes it."""
        media = {"multi_modal_data": dict(self.multi_modal_data)} if self.multi_modal_data else {}
        return {"prompt": self.prompt, **media}


@dataclass(frozen=True, slots=True)
class OmniTokensPrompt:
    """The engine prompt of an AR stage as token ids, with additional information, or as embeddings.

    prompt_token_ids        [P]; empty with prompt_embeds
    prompt_embeds           [P, H], float, on the CPU: the prompt itself, or None
    prompt_spans            embeddings for parts of prompt_token_ids, in the order of their starts. The ids below them
                            are in the vocabulary; they count for penalties alone
    tools                   those that the prompt tells of, or None
    additional_information  tensors and values by name, which the model class reads (workers.runners.ar.model_interface)
    """

    prompt_token_ids: Sequence[int]
    additional_information: Mapping[str, Any]
    parameters: TokenParameters
    seed: int
    capture: bool
    prompt_embeds: torch.Tensor | None = None
    tools: ToolUse | None = None
    prompt_spans: Sequence[PromptSpan] = ()

    @property
    def length(self) -> int:
        """The number of the prompt's positions, P."""
        return len(self.prompt_token_ids if self.prompt_embeds is None else self.prompt_embeds)

    def for_vllm(self, hidden_size: int) -> dict[str, Any]:
        """Return the prompt as vLLM takes it, whose input embeddings have ``hidden_size`` numbers.

        Raises ModelError naming embeddings that do not fit the model, the prompt, or the span before them.
        """
        if self.prompt_spans:
            return _with_spans(self, hidden_size)
        if self.prompt_embeds is not None:
            _check_rows(self.prompt_embeds, "prompt_embeds", hidden_size)
            return {"prompt_embeds": self.prompt_embeds}
        return {"prompt_token_ids": list(self.prompt_token_ids)}


def _with_spans(prompt: OmniTokensPrompt, hidden_size: int) -> dict[str, Any]:
    """Return vLLM's prompt of token ids and embeddings: rows for all positions, and which of them are tokens."""
    import torch

    if prompt.prompt_embeds is not None:
        raise ModelError("given, and prompt_embeds as well: these are the whole prompt", field="prompt_spans")
    done = 0
    for number, span in enumerate(prompt.prompt_spans):
        _check_span(span, f"prompt_spans.{number}", done, len(prompt.prompt_token_ids), hidden_size)
        done = span.end
    dtype = prompt.prompt_spans[0].rows.dtype
    for span in prompt.prompt_spans:
        dtype = torch.promote_types(dtype, span.rows.dtype)
    rows = torch.zeros(len(prompt.prompt_token_ids), hidden_size, dtype=dtype)
    are_tokens = [True] * len(prompt.prompt_token_ids)
    for span in prompt.prompt_spans:
        rows[span.start : span.end] = span.rows
        are_tokens[span.start : span.end] = [False] * len(span.rows)
    return {
        "prompt_token_ids": list(prompt.prompt_token_ids),
        "prompt_is_token_ids": are_tokens,
        "prompt_embeds": rows,
        # vLLM's prefix cache would take a row of zeros for a token 0.
        "cache_salt": ",".join(f"{span.start}-{span.end}" for span in prompt.prompt_spans),
    }


def _check_span(span: PromptSpan, field: str, begin: int, end: int, hidden_size: int) -> None:
    """Raise ModelError for a span that is not within the positions ``begin`` … ``end``, or of other rows."""
    _check_rows(span.rows, f"{field}.rows", hidden_size)
    if span.start < 0 or span.end > end:
        said = f"positions {span.start} to {span.end - 1}, and the prompt has those from 0 to {end - 1}"
        raise ModelError(said, field=f"{field}.start")
    if span.start < begin:
        raise ModelError(f"{span.start}, and the span before it ends at {begin - 1}", field=f"{field}.start")


def _check_rows(rows: torch.Tensor, field: str, hidden_size: int) -> None:
    """Raise ModelError for embeddings that are not the model's; its engine would die of them."""
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != hidden_size:
        raise ModelError(f"{list(rows.shape)} where [1 or more, {hidden_size}] is due", field=f"{field}.shape")
    if not rows.is_floating_point():
        raise ModelError(f"{rows.dtype}, which is no float", field=f"{field}.dtype")
