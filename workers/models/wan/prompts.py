"""The prompts of Wan: one description, as its text encoder reads it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.messages import parts_of
from omni_jobs.prompts.prompt_tokenizer import Messages, PromptTokenizer
from workers.models.pictures.description import (
    check_negative_prompts,
    check_one_message,
    description_of,
    message_of,
    negative_prompts,
)
from workers.models.wan.model_index import PICTURE_CLASS, TEXT_CLASS, read_boundary_ratio

MAX_TEXT_TOKENS: Final = 512
"""The longest description with its end, in tokens. Diffusers cuts a longer one; omni-jobs refuses it.

A transformer sees so many rows: those of a shorter text and zeros, as it was trained.
"""

_END = "</s>"


class DescriptionTemplate:
    """A ``PromptTemplate`` of one message: its text in one line, and the end that the text encoder was taught."""

    def render(self, messages: Messages) -> str:
        return cleaned(description_of(messages)) + _END


class WanPromptRenderer:
    """The prompt renderer of a Wan checkpoint in the layout of Diffusers, whose prompt is a description."""

    longest_audio_s = None  # it takes no audio
    max_model_len = MAX_TEXT_TOKENS
    _class: ClassVar = TEXT_CLASS
    _pictures: ClassVar = 0  # of a request

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when one is missing or another model's."""
        read_boundary_ratio(model_dir, self._class)
        file = model_dir / "text_encoder" / "config.json"
        self.hidden_size = positive(read_json(file), ("d_model",), str(file))
        self._tokenizer = PromptTokenizer(model_dir / "tokenizer", DescriptionTemplate())

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have a model_index.json, and no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for anything but one text, with the picture that is due, or a reserved token in it.

        Raise it for a reserved token in a negative prompt, too.
        """
        check_one_message(request, "films one description")
        media = list(parts_of(request))
        for number, (field, part) in enumerate(media):
            if number == self._pictures or part["type"] != "image":
                due = "one picture and a description" if self._pictures else "a description alone"
                raise InvalidRequest(f"this model makes a video of {due}", field=field)
        if len(media) < self._pictures:
            raise InvalidRequest(
                "the picture is missing that the video begins with", field="messages.0.content.image_url"
            )
        text = cleaned(description_of(request["messages"]))
        if not text:
            raise InvalidRequest("the description is empty", field="messages.0.content")
        negative = ((cleaned(each), field) for each, field in negative_prompts(request))
        self._tokenizer.check_words([(text, "messages.0.content"), *negative])

    def render(self, request: Mapping[str, Any]) -> str:
        return DescriptionTemplate().render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        return self._tokenizer.encode(request["messages"])

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text, which may be empty."""
        return self._tokenizer.encode(message_of(text))

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Count as the protocol says. Raise InvalidRequest for a negative prompt that is too long, too."""
        count = partial(self._tokenizer.count, limit=MAX_TEXT_TOKENS)
        check_negative_prompts(request, count, MAX_TEXT_TOKENS)
        return count(request["messages"])

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return MAX_TEXT_TOKENS


class WanPicturePromptRenderer(WanPromptRenderer):
    """That of a checkpoint that begins with a picture, of which the text encoder sees nothing."""

    _class = PICTURE_CLASS
    _pictures = 1


def cleaned(text: str) -> str:
    """Return a text in one line, its HTML entities as letters. Source: Diffusers, ``prompt_clean`` without ftfy."""
    return " ".join(html.unescape(html.unescape(text)).split())
