"""``RemoteTextProcessor``: a text of an earlier stage, or of the job, is spoken, drawn or answered."""

from typing import Any

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import last_user_text
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.stage_parts import StageParts, media_of, upstream_texts
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class RemoteTextProcessor:
    """Makes a prompt of a text alone. Its name in a stage config is ``remote_text``.

    The text is what earlier stages made, or else the last user message. Of chat and responses it becomes the user's
    message. Images and videos take the job's pictures, too, to start from.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Check the stage's endpoint. Raises ConfigError."""
        del model
        self._parts = StageParts(stage, "chat", "responses", "speech", "images", "videos")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt. Raises ModelError for no text, InvalidRequest naming a parameter or a picture."""
        texts = upstream_texts(stage_input) or [last_user_text(stage_input.request)]
        text = "\n\n".join(texts)
        if not text.strip():
            raise ModelError("there is no text", field="messages")
        endpoint = self._parts.engine.endpoint
        return self._parts.prompt(
            stage_input,
            messages=[{"role": "user", "content": text}] if endpoint in ("chat", "responses") else (),
            text=text,
            files=media_of(stage_input, "image") if endpoint in ("images", "videos") else (),
        )
