"""The prompts of Wan: one description, as its text encoder reads it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.messages import parts_of
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.wan.model_index import PICTURE_CLASS, TEXT_CLASS, read_index

MAX_TEXT_TOKENS: Final = 512
"""The longest description with its end, in tokens. Diffusers cuts a longer one; omni-jobs refuses it."""

_END = "</s>"


class DescriptionTemplate:
    """A ``PromptTemplate`` of one message: its text in one line, and the end that the text encoder was taught."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return cleaned(_text_of(messages)) + _END


class WanPromptRenderer:
    """The prompt renderer of a Wan checkpoint in the layout of Diffusers, whose prompt is a description."""

    longest_audio_s = None  # it takes no audio
    max_model_len = MAX_TEXT_TOKENS
    _class: ClassVar = TEXT_CLASS
    _pictures: ClassVar = 0  # of a request

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when one is missing or another model's."""
        read_index(model_dir, self._class)
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
        messages = request["messages"]
        for number, message in enumerate(messages):
            if number or message["role"] != "user":
                raise InvalidRequest(
                    "this model films one description: a single message of the user", field=f"messages.{number}"
                )
        media = list(parts_of(request))
        for number, (field, part) in enumerate(media):
            if number == self._pictures or part["type"] != "image":
                due = "one picture and a description" if self._pictures else "a description alone"
                raise InvalidRequest(f"this model makes a video of {due}", field=field)
        if len(media) < self._pictures:
            raise InvalidRequest(
                "the picture is missing that the video begins with", field="messages.0.content.image_url"
            )
        text = cleaned(_text_of(messages))
        if not text:
            raise InvalidRequest("the description is empty", field="messages.0.content")
        negative = ((cleaned(each), field) for each, field in _negative_prompts(request))
        self._tokenizer.check_words([(text, "messages.0.content"), *negative])

    def render(self, request: Mapping[str, Any]) -> str:
        return DescriptionTemplate().render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        return self._tokenizer.encode(request["messages"])

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text, which may be empty."""
        return self._tokenizer.encode(_message(text))

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Count as the protocol says. Raise InvalidRequest for a negative prompt that is too long, too."""
        for text, field in _negative_prompts(request):
            try:
                tokens = self._tokenizer.count(_message(text), MAX_TEXT_TOKENS)
            except InvalidRequest as error:
                raise InvalidRequest(error.message, field=field) from None
            if tokens > MAX_TEXT_TOKENS:
                raise InvalidRequest(f"it has {tokens} tokens; the model takes {MAX_TEXT_TOKENS}", field=field)
        return self._tokenizer.count(request["messages"], MAX_TEXT_TOKENS)

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return MAX_TEXT_TOKENS


class WanPicturePromptRenderer(WanPromptRenderer):
    """That of a checkpoint that begins with a picture, of which the text encoder sees nothing."""

    _class = PICTURE_CLASS
    _pictures = 1


def cleaned(text: str) -> str:
    """Return a text in one line, its HTML entities as letters. Source: Diffusers, ``prompt_clean`` without ftfy."""
    return " ".join(html.unescape(html.unescape(text)).split())


def _text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    content = messages[0]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _negative_prompts(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (text, field) of each negative prompt that the request gives."""
    return [
        (values["negative_prompt"], f"stages.{stage}.negative_prompt")
        for stage, values in request.get("parameters", {}).items()
        if isinstance(values.get("negative_prompt"), str)
    ]


def _message(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
