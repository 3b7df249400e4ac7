"""Input processor of echo stages: the text of the last user message, and how much came from upstream."""

from __future__ import annotations

from typing import Any

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.parameters import EchoParameters
from omni_jobs.pipelines.stage_config import StageConfig
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import EchoPrompt, StageInput

__all__ = ["EchoProcessor"]


class EchoProcessor:
    """Makes an EchoPrompt of any job."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Needs nothing of either."""

    def __call__(self, stage_input: StageInput) -> EchoPrompt:
        if not isinstance(stage_input.parameters, EchoParameters):
            raise ModelError("an echo stage has echo parameters", field="parameters")
        return EchoPrompt(
            text=_last_user_text(stage_input.request.get("messages", ())),
            upstream_bytes=sum(payload.tensor_bytes for payload in stage_input.upstream.values()),
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )


def _last_user_text(messages: Any) -> str:
    """Parts of one message are joined by newlines, as chat templates do not: this is no model."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content", "")
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return ""
