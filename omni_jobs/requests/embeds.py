"""The check of embeddings that stand in place of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_jobs.errors import InvalidRequest, PayloadError
from omni_jobs.payloads import PromptEmbedsPayload

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig
    from omni_jobs.prompts.renderers import PromptRenderer

_DTYPES = frozenset({"F16", "BF16", "F32"})


def check_embeds(data: bytes | memoryview, renderer: PromptRenderer | None, stages: Sequence[StageConfig]) -> int:
    """Check embeddings that stand in place of a prompt: a safetensors file with one tensor, ``prompt_embeds``.

    Return the number of its tokens. Raises InvalidRequest without a renderer, and unless it has the shape [tokens,
    hidden size] and the dtype F16, BF16 or F32, fits the model in size and length, and holds only finite values.
    """
    if renderer is None:
        raise InvalidRequest("this pipeline has no model to read them", field="prompt_embeds")
    try:
        payload = PromptEmbedsPayload.decode(data, len(data))
        tokens, hidden_size = payload.embeds.shape
        if payload.embeds.dtype not in _DTYPES:
            known = ", ".join(sorted(_DTYPES))
            raise InvalidRequest(f"{payload.embeds.dtype}, not one of {known}", field="prompt_embeds.dtype")
        if hidden_size != renderer.hidden_size:
            raise InvalidRequest(
                f"rows of {hidden_size}; the model's hidden size is {renderer.hidden_size}", field="prompt_embeds.shape"
            )
        limit = renderer.prompt_limit(stages)
        if not 1 <= tokens <= limit:
            raise InvalidRequest(f"{tokens} tokens; the model takes 1 to {limit}", field="prompt_embeds.shape")
        payload.check_finite()
        return tokens
    except PayloadError as error:
        raise InvalidRequest(error.message, field=error.field or "prompt_embeds") from None
