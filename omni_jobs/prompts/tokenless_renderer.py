"""``TokenlessRenderer``: the prompt renderer of models whose prompts have no tokens that anybody counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.stage_config import StageConfig


class TokenlessRenderer:
    """A base of ``PromptRenderer``: its prompt is a sound, a picture or a text of any length.

    A subclass has ``check``, which says what of a request the model needs.
    """

    max_model_len = 1
    hidden_size = 0  # it takes no embeddings
    longest_audio_s = None

    def __init__(self, model_dir: Path) -> None:
        """Do nothing: no file of the checkpoint is needed to check a request."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have no config.json

    def render(self, request: Mapping[str, Any]) -> str:
        """Return nothing: the prompt has no text, or none that goes to the engine as it is."""
        return ""

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None: there are no tokens."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Return 0. A subclass may check the media here."""
        return 0

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return self.max_model_len
