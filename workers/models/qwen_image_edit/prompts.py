"""The prompts of Qwen-Image-Edit: pictures and one instruction, in the template of its text encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import ImageInfo, MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.picture_parts import picture_parts
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.qwen_image.size import Size
from workers.models.qwen_image.template import MAX_EDIT_TOKENS
from workers.models.qwen_image.text_encoder_files import TOKENIZER, TextEncoderFiles
from workers.models.qwen_image_edit.sizes import size_of_area
from workers.models.qwen_image_edit.template import (
    PREFIX,
    PREFIX_TOKENS,
    QwenImageEditTemplate,
    instruction,
)
from workers.models.qwen_image_edit.variant import PROCESSOR, variant_of
from workers.models.qwen_vision import MOST_RATIO, QwenVision

_LONGEST = PREFIX_TOKENS + MAX_EDIT_TOKENS


class QwenImageEditPromptRenderer:
    """The prompt renderer of a Qwen-Image-Edit checkpoint in the layout of Diffusers."""

    longest_audio_s = None  # it takes no audio

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file or a field is missing or another model's."""
        self._variant = variant_of(model_dir)
        files = TextEncoderFiles.read(model_dir, PREFIX, PREFIX_TOKENS)
        self.max_model_len, self.hidden_size = files.max_model_len, files.hidden_size
        self._vision = QwenVision.read(model_dir / PROCESSOR)
        self._template = QwenImageEditTemplate(self._variant.label)
        self._tokenizer = PromptTokenizer(model_dir / TOKENIZER, self._template, files.tokenizer)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have a model_index.json, and no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for anything but pictures and one instruction, or a reserved token in a text."""
        messages = request["messages"]
        for number, message in enumerate(messages):
            if number or message["role"] != "user":
                raise InvalidRequest(
                    "this model follows one instruction: a single message of the user", field=f"messages.{number}"
                )
        pictures, most = len(list(picture_parts(messages))), self._variant.pictures
        if not 1 <= pictures <= most:
            due = "one picture" if most == 1 else f"1 to {most} pictures"
            raise InvalidRequest(
                f"this model edits {due}, and the message has {pictures or 'none'}", field="messages.0.content"
            )
        if not instruction(messages).strip():
            raise InvalidRequest("the instruction is empty", field="messages.0.content")
        self._tokenizer.check(messages)
        for text, field in _negative_prompts(request):
            try:
                self._tokenizer.check(_message(text, pictures))
            except InvalidRequest as error:
                raise InvalidRequest(error.message, field=field) from None

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        """Return the prompt's token ids, one for each picture."""
        return self._tokenizer.encode(request["messages"])

    def encode_text(self, text: str, pictures: int) -> list[int]:
        """Return the token ids of the prompt of this instruction for so many pictures, as ``encode`` does."""
        return self._tokenizer.encode(_message(text, pictures))

    def seen_as(self, size: Size) -> Size:
        """Return the size to which a picture is scaled for the text encoder."""
        return size_of_area(self._variant.pixels, size)

    def picture_tokens(self, sizes: Sequence[Size]) -> int:
        """Return by how many tokens a prompt with pictures of these sizes grows: by all but one of each picture."""
        return sum(self._vision.tokens(*self.seen_as(size)) - 1 for size in sizes)

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Count as the protocol says.

        Raise InvalidRequest for a negative prompt that is too long with the pictures, and for a picture that is too
        long for the text encoder once its sides are multiples of 32.
        """
        sizes = [Size(info.height, info.width) for info in media if isinstance(info, ImageInfo)]
        for size, (field, _) in zip(sizes, picture_parts(request["messages"]), strict=True):
            self._vision.check(size.height, size.width, field)
            if max(self.seen_as(size)) > MOST_RATIO * min(self.seen_as(size)):
                raise InvalidRequest(
                    f"the image has {size.width}×{size.height} pixels; this model takes no picture so long", field=field
                )
        grown = self.picture_tokens(sizes)
        for text, field in _negative_prompts(request):
            tokens = self._tokenizer.count(_message(text, len(sizes)), _LONGEST) + grown
            if tokens > _LONGEST:
                raise InvalidRequest(
                    f"it has {tokens} tokens with pictures and template; the model takes {_LONGEST}", field=field
                )
        return self._tokenizer.count(request["messages"], _LONGEST) + grown

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages]
        return min(*lengths, self.max_model_len, _LONGEST)


def _negative_prompts(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (text, field) of each negative prompt that the request gives."""
    given = request.get("parameters", {}).items()
    return [
        (values["negative_prompt"], f"stages.{stage}.negative_prompt")
        for stage, values in given
        if isinstance(values.get("negative_prompt"), str)
    ]


def _message(text: str, pictures: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image", "media": number} for number in range(pictures)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
