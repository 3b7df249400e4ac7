"""What admission asks of a request that is to be spoken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.last_user_text import last_user_text
from workers.models.hibari.speakable import check_speakable

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.stage_config import StageConfig


class HibariPromptRenderer:
    """The ``PromptRenderer`` of a directory of voices. Its prompt is a text, whose tokens nobody counts.

    The stage bounds the speech and not the text, because only the model knows how long a text takes to say.
    """

    max_model_len = 1
    hidden_size = 0  # it takes no embeddings
    longest_audio_s = None

    def __init__(self, model_dir: Path) -> None:
        """Do nothing: no file of the directory is needed to check a request."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # a directory of voices has no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request whose last user message is nothing that the voices can say."""
        check_speakable(last_user_text(request), InvalidRequest, "messages")

    def render(self, request: Mapping[str, Any]) -> str:
        return last_user_text(request)

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None: the stage makes phonemes of the text."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Return 0: see the class."""
        return 0

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return self.max_model_len
