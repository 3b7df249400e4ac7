"""Embeddings as a job's prompt: they are checked whole before anything of them is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_jobs.errors import InvalidRequest, PayloadError
from omni_jobs.payloads import PayloadLimits, PromptEmbedsPayload

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig
    from omni_jobs.prompts import PromptRenderer

DTYPES = frozenset({"F16", "BF16", "F32"})


def check_embeds(data: bytes | memoryview, renderer: PromptRenderer | None, stages: Sequence[StageConfig]) -> int:
    """Return the prompt's length in tokens.

    ``data``: a safetensors file with one tensor, ``prompt_embeds``, of shape [tokens, hidden size] and dtype F16, BF16
    or F32. Raises InvalidRequest where format, dtype, rank, hidden size or length do not fit, or a value is not finite.
    """
    if renderer is None:
        raise InvalidRequest("this pipeline has no model to read them", field="prompt_embeds")
    try:
        payload = PromptEmbedsPayload.decode(data, PayloadLimits(max_bytes=len(data)))
        tokens, hidden_size = payload.embeds.shape
        if payload.embeds.dtype not in DTYPES:
            known = ", ".join(sorted(DTYPES))
            raise InvalidRequest(f"{payload.embeds.dtype}, not one of {known}", field="prompt_embeds.dtype")
        if hidden_size != renderer.hidden_size:
            raise InvalidRequest(
                f"rows of {hidden_size}; the model's hidden size is {renderer.hidden_size}", field="prompt_embeds.shape"
            )
        limit = renderer.prompt_limit(stages)
        if not 1 <= tokens <= limit:
            raise InvalidRequest(f"{tokens} tokens; the model takes 1 to {limit}", field="prompt_embeds.shape")
        payload.check_finite()
    except PayloadError as error:
        raise InvalidRequest(error.message, field=error.field or "prompt_embeds") from None
    return tokens
