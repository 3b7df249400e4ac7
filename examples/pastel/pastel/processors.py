"""The input processor: a request's text becomes the model's prompt. It needs no torch."""

from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from pastel.parameters import PastelParameters
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

__all__ = ["PastelProcessor"]


class PastelProcessor:
    """Takes the text of the last message."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read nothing: this processor needs no part of the checkpoint."""

    def __call__(self, stage_input: StageInput[PastelParameters]) -> DiffusionPrompt[PastelParameters]:
        """Return the prompt, with a value ``text``. Raises ModelError for a message without text."""
        text = _text(stage_input.request["messages"][-1])
        if not text.strip():
            raise ModelError("the last message has no text", field="messages")
        return DiffusionPrompt({}, {"text": text}, stage_input.parameters, stage_input.seed, stage_input.previews)


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)
