"""``RemoteChatProcessor``: a job's messages and media become a chat's or a response's."""

import base64
from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.stage_parts import StageParts, medium
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class RemoteChatProcessor:
    """Makes the prompt of a first remote stage. Media are sent as they came. Its name is ``remote_chat``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Check the stage's endpoint. Raises ConfigError."""
        del model
        self._parts = StageParts(stage, "chat", "responses")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt. Raises InvalidRequest naming a parameter or medium, ModelError for embeddings."""
        if not stage_input.request.get("messages"):
            raise ModelError("a remote server takes messages", field="messages")
        return self._parts.prompt(
            stage_input,
            messages=[
                _message(stage_input, message, f"messages.{position}")
                for position, message in enumerate(stage_input.request["messages"])
            ],
        )


def _message(stage_input: StageInput[Any], message: Mapping[str, Any], field: str) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, str):
        content = [
            part if part["type"] == "text" else _part(stage_input, part, f"{field}.content.{place}")
            for place, part in enumerate(content)
        ]
    return {"role": message["role"], "content": content}


def _part(stage_input: StageInput[Any], part: Mapping[str, Any], field: str) -> dict[str, Any]:
    file = medium(stage_input, part, field)
    data = base64.b64encode(file.data).decode()
    if part["type"] == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": file.name.partition(".")[2]}}
    name = f"{part['type']}_url"
    return {"type": name, name: {"url": f"data:{file.media_type};base64,{data}"}}
