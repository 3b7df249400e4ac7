"""The prompts of Qwen-Image: one description, in the template with which its text encoder reads it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import read_json
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.qwen_image.template import MAX_TEXT_TOKENS, PREFIX, PREFIX_TOKENS, QwenImageTemplate, description
from workers.models.qwen_image.text_encoder_files import TOKENIZER, TextEncoderFiles

_LONGEST = PREFIX_TOKENS + MAX_TEXT_TOKENS
_CLASS = "QwenImagePipeline"


class QwenImagePromptRenderer:
    """The prompt renderer of a Qwen-Image checkpoint in the layout of Diffusers."""

    longest_audio_s = None  # it takes no audio

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file or a field is missing or another model's."""
        index = model_dir / "model_index.json"
        found = read_json(index).get("_class_name")
        if found != _CLASS:
            message = f"a {found!r:.100} does not draw: pipeline qwen_image takes a {_CLASS}"
            raise ConfigError(message, file=str(index), field="_class_name")
        files = TextEncoderFiles.read(model_dir, PREFIX, PREFIX_TOKENS)
        self.max_model_len, self.hidden_size = files.max_model_len, files.hidden_size
        self._template = QwenImageTemplate()
        self._tokenizer = PromptTokenizer(model_dir / TOKENIZER, self._template, files.tokenizer)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have a model_index.json, and no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for anything but one description, or a reserved token in it or the negative prompt."""
        messages = request["messages"]
        for number, message in enumerate(messages):
            if number or message["role"] != "user":
                raise InvalidRequest(
                    "this model draws one description: a single message of the user", field=f"messages.{number}"
                )
        if not description(messages).strip():
            raise InvalidRequest("the description is empty", field="messages.0.content")
        self._tokenizer.check(messages)
        for stage, values in request.get("parameters", {}).items():
            if isinstance(values.get("negative_prompt"), str):
                self._check_negative(values["negative_prompt"], f"stages.{stage}.negative_prompt")

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        return self._tokenizer.encode(request["messages"])

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of the prompt of this description, as ``encode`` does; it may be empty."""
        return self._tokenizer.encode(_messages(text))

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        return self._tokenizer.count(request["messages"], _LONGEST)

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages]
        return min(*lengths, self.max_model_len, _LONGEST)

    def _check_negative(self, text: str, field: str) -> None:
        messages = _messages(text)
        try:
            self._tokenizer.check(messages)
            tokens = self._tokenizer.count(messages, _LONGEST)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=field) from None
        if tokens > _LONGEST:
            raise InvalidRequest(f"it has {tokens} tokens with its template; the model takes {_LONGEST}", field=field)


def _messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
