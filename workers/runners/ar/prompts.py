"""The engine prompts of AR stages: rendered text with media, token ids, or embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.runners.ar.parameters import ArParameters, TokenParameters
from workers.runners.ar.tool_use import ToolUse

if TYPE_CHECKING:
    import torch


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


@dataclass(frozen=True, slots=True)
class OmniTokensPrompt:
    """The engine prompt of an AR stage as token ids, with additional information, or as embeddings.

    prompt_token_ids        [P]; empty with prompt_embeds
    prompt_embeds           [P, H], float, on the CPU: the prompt itself, or None
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
