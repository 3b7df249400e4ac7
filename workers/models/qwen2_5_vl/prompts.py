"""The prompts of Qwen2.5-VL: a language model's, with a placeholder for each picture and video.

The counts follow Transformers' Qwen2_5_VLProcessor, which vLLM uses too; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import AudioInfo, MediaInfo
from omni_jobs.prompts.messages import parts_of
from workers.models.causal_lm.prompts import CausalLmPromptRenderer, with_read_calls
from workers.models.qwen_vision import QwenVision, visual_tokens


class QwenVlPromptRenderer(CausalLmPromptRenderer):
    """The prompt renderer of a Qwen2.5-VL checkpoint."""

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file, a field or the chat template is missing."""
        super().__init__(model_dir)
        self._pictures = QwenVision.read(model_dir)
        self._frames = QwenVision.read_frames(model_dir)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == "qwen2_5_vl"

    def messages_of(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a request's messages as the template takes them: with their parts."""
        return with_read_calls(request)

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None, because the engine's processor tokenizes the prompt and expands its placeholders."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        expanded = sum(self._media_tokens(media[part["media"]], field) - 1 for field, part in parts_of(request))
        return super().count_tokens(request, media) + expanded

    def _media_tokens(self, info: MediaInfo, field: str) -> int:
        if isinstance(info, AudioInfo):
            raise InvalidRequest("this model hears nothing: it takes text, pictures and videos", field=field)
        return visual_tokens(info, field, self._pictures, self._frames)
