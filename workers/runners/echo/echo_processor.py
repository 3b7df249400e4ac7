"""``EchoProcessor``: the last user message and the size of the payloads become an echo stage's prompt."""

from typing import Any

from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.echo.parameters import EchoParameters
from workers.runners.echo.prompt import EchoPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class EchoProcessor:
    """Makes the EchoPrompt of an echo stage from any job. Its name in a stage config is ``echo``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: an echo stage has no checkpoint to read."""

    def __call__(self, stage_input: StageInput[EchoParameters]) -> EchoPrompt:
        """Return the prompt."""
        return EchoPrompt(
            text=_last_user_text(stage_input.request.get("messages", ())),
            upstream_bytes=sum(payload.tensor_bytes for payload in stage_input.upstream.values()),
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )


def _last_user_text(messages: Any) -> str:
    """Return the text of the last user message; newlines join its parts, which no chat template does."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content", "")
            if isinstance(content, str):
                return content
            return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return ""
