"""What admission asks of a Whisper checkpoint: that a request brings a recording, and a language that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.prompts.checkpoint_files import read_json
from omni_jobs.prompts.messages import parts_of
from omni_jobs.prompts.renderers import TokenlessRenderer
from workers.models.whisper.languages import check_parameters, languages_of
from workers.models.whisper.parameters import WhisperParameters

if TYPE_CHECKING:
    from omni_jobs.pipelines.parameters import StageParameters


class WhisperPromptRenderer(TokenlessRenderer):
    """The ``PromptRenderer`` of a CTranslate2 directory of Whisper.

    Sound of any length is taken: the runner cuts it at pauses.
    """

    def __init__(self, model_dir: Path) -> None:
        """Check the directory. Raises ConfigError naming the file that is missing or is not Whisper's."""
        check_whisper_directory(model_dir)
        self._languages = languages_of(model_dir)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return "alignment_heads" in config and "suppress_ids" in config

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request without a recording."""
        if not any(parts_of(request, "audio")):
            raise InvalidRequest("no recording: a message needs a part of the type input_audio", field="messages")

    def check_parameters(self, parameters: StageParameters) -> None:
        """Raise InvalidRequest naming the parameter that the checkpoint cannot follow."""
        if isinstance(parameters, WhisperParameters):
            check_parameters(parameters, self._languages, InvalidRequest)


def check_whisper_directory(model_dir: Path) -> None:
    """Raise ConfigError naming the file, if a directory is no Whisper model in CTranslate2's form.

    tokenizer.json must be there, because faster-whisper would download it.
    """
    if not WhisperPromptRenderer.takes(read_json(model_dir / "config.json")):
        raise ConfigError(
            "not the config of a Whisper model in CTranslate2's form (ct2-transformers-converter makes one)",
            file=str(model_dir / "config.json"),
        )
    for name in ("model.bin", "tokenizer.json"):
        if not (model_dir / name).is_file():
            raise ConfigError("the checkpoint lacks this file", file=str(model_dir / name))
