"""The prompts of Qwen-Image: one description, or pictures and one instruction, as its text encoder reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.media import ImageInfo, MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.messages import picture_parts
from omni_jobs.prompts.prompt_tokenizer import Messages, PromptTokenizer
from workers.models.pictures.description import (
    check_negative_prompts,
    check_one_message,
    description_of,
    message_of,
    negative_prompts,
)
from workers.models.qwen_image.qwen2_tokenizer import load_qwen2_tokenizer
from workers.models.qwen_image.size import Size, size_of_area
from workers.models.qwen_image.template import PROCESSOR, template_of
from workers.models.qwen_vision import MOST_RATIO, QwenVision


class QwenImagePromptRenderer:
    """The prompt renderer of a checkpoint of Qwen-Image in the layout of Diffusers, whose prompt is a description."""

    longest_audio_s = None  # it takes no audio
    _edits: ClassVar = False
    _does: ClassVar = "draws"
    _text: ClassVar = "description"

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files.

        Raise ConfigError when a file or a field is missing or another model's, or the tokenizer makes another number of
        tokens of the template's begin.
        """
        self.template = template_of(model_dir, edits=self._edits)
        file = model_dir / "text_encoder" / "config.json"
        config = read_json(file)
        within: tuple[str, ...] = ("text_config",) if isinstance(config.get("text_config"), dict) else ()
        self.max_model_len = positive(config, (*within, "max_position_embeddings"), str(file))
        self.hidden_size = positive(config, (*within, "hidden_size"), str(file))
        self._longest = self.template.prefix_tokens + self.template.most_tokens
        self._vision = QwenVision.read(model_dir / PROCESSOR) if self._edits else None
        directory = model_dir / "tokenizer"
        tokenizer = load_qwen2_tokenizer(directory)
        self._tokenizer = PromptTokenizer(directory, self.template, tokenizer)
        tokens = len(self._tokenizer.encode_text(self.template.prefix))
        if tokens != self.template.prefix_tokens:
            raise ConfigError(
                f"the template begins with {self.template.prefix_tokens} tokens, and with {tokens} of this tokenizer",
                file=str(directory),
            )

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have a model_index.json, and no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for anything but one text, with the pictures that are due, or a reserved token in it.

        Raise it for a reserved token in a negative prompt, too.
        """
        messages = request["messages"]
        check_one_message(request, f"{self._does} one {self._text}")
        pictures, most = len(list(picture_parts(messages))), self.template.pictures
        if self._edits and not 1 <= pictures <= most:
            due = "one picture" if most == 1 else f"1 to {most} pictures"
            raise InvalidRequest(
                f"this model edits {due}, and the message has {pictures or 'none'}", field="messages.0.content"
            )
        if not description_of(messages).strip():
            raise InvalidRequest(f"the {self._text} is empty", field="messages.0.content")
        self._tokenizer.check(messages)
        self._tokenizer.check_words(negative_prompts(request))

    def render(self, request: Mapping[str, Any]) -> str:
        return self.template.render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        """Return the prompt's token ids, one for each picture."""
        return self._tokenizer.encode(request["messages"])

    def encode_text(self, text: str, pictures: int = 0) -> list[int]:
        """Return the token ids of a prompt of ``text``, which may be empty, and this number of pictures."""
        return self._tokenizer.encode(message_of(text, pictures))

    def seen_as(self, size: Size) -> Size:
        """Return the size to which a picture is scaled for the text encoder."""
        return size_of_area(self.template.pixels, size)

    def picture_tokens(self, sizes: Sequence[Size]) -> int:
        """Return by how many tokens a prompt with pictures of these sizes grows: by all but one of each picture."""
        return 0 if self._vision is None else sum(self._vision.tokens(*self.seen_as(size)) - 1 for size in sizes)

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Count as the protocol says.

        Raise InvalidRequest for a negative prompt that is too long, and for a picture that is too long for the text
        encoder once its sides are multiples of 32.
        """
        sizes = [Size(info.height, info.width) for info in media if isinstance(info, ImageInfo)]
        for size, (field, _) in zip(sizes, picture_parts(request["messages"]), strict=True):
            self._check_size(size, field)
        grown = self.picture_tokens(sizes)

        def count(messages: Messages) -> int:
            return self._tokenizer.count(messages, self._longest) + grown

        beside = " with pictures and template" if sizes else " with its template"
        check_negative_prompts(request, count, self._longest, pictures=len(sizes), beside=beside)
        return count(request["messages"])

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages]
        return min(*lengths, self.max_model_len, self._longest)

    def _check_size(self, size: Size, field: str) -> None:
        if self._vision is None:
            raise InvalidRequest("this model draws, and edits no pictures", field=field)
        self._vision.check(size.height, size.width, field)
        if max(self.seen_as(size)) > MOST_RATIO * min(self.seen_as(size)):
            raise InvalidRequest(
                f"the image has {size.width}×{size.height} pixels; this model takes no picture so long", field=field
            )


class QwenImageEditPromptRenderer(QwenImagePromptRenderer):
    """That of a checkpoint of Qwen-Image-Edit, whose prompt is pictures and an instruction."""

    _edits = True
    _does = "follows"
    _text = "instruction"
