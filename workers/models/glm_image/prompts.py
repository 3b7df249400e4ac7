"""The prompts of GLM-Image: one message's pictures and text, the sizes of the grids, and the mark that begins one.

A picture stands in the prompt as image tokens between two marks. The prompts are those of Transformers'
``GlmImageProcessor``; a test compares the two.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.media import ImageInfo, MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.chat_template import ChatTemplate
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.messages import picture_parts
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.glm_image.grids import LARGEST, MOST_SOURCES, MOST_TOKENS, Grids, SourceGrids, grids_of

PROCESSOR = "processor"
LANGUAGE_MODEL = "vision_language_encoder"

_LONGEST_END = len(f"{grids_of(LARGEST, LARGEST).prompt_text}<|dit_token_16384|>")  # tokens: a letter has one at most

MOST_BYTES = 2048
"""The most bytes of a prompt's glyph texts: Diffusers cuts each after 2,048 tokens, and a token is a byte."""

_QUOTES = tuple(re.compile(pair) for pair in (r"'([^']*)'", r"“([^“”]*)”", r'"([^"]*)"', r"「([^「」]*)」"))


class Prompt(NamedTuple):
    """A prompt's ``ids``, and where in it the grid of each source picture begins."""

    ids: list[int]
    begins: list[int]


class GlmImagePromptRenderer:
    """The prompt renderer of a GLM-Image checkpoint in the layout of Diffusers."""

    hidden_size = 0  # it takes no embeddings
    longest_audio_s = None  # it takes no audio

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file, a field or the chat template is missing."""
        file = model_dir / LANGUAGE_MODEL / "config.json"
        config = read_json(file)
        self.max_model_len = positive(config, ("text_config", "max_position_embeddings"), str(file))
        self._image_tokens = positive(config, ("text_config", "vision_vocab_size"), str(file))
        self._placeholder = positive(config, ("image_token_id",), str(file))
        marks = [positive(config, (f"image_{mark}_token_id",), str(file)) for mark in ("start", "end")]
        self._picture = [marks[0], self._placeholder, marks[1]]
        self._source_grids = SourceGrids.read(model_dir / PROCESSOR)
        # A picture's begin belongs to the grids, so no template writes it here.
        self._template = ChatTemplate(model_dir / PROCESSOR, generation_prompt=False)
        self._tokenizer = PromptTokenizer(model_dir / PROCESSOR, self._template)
        settings = model_dir / PROCESSOR / "tokenizer_config.json"
        self._begin = read_json(settings).get("bos_token")
        if not isinstance(self._begin, str):
            raise ConfigError("no token begins a picture", file=str(settings), field="bos_token")

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have a model_index.json, and no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for anything but one user message with a text, and for text that the model reserves.

        Raise it for more pictures than are edited at once, too.
        """
        text = text_of(request)
        self._tokenizer.check(request["messages"])
        if not text.strip():
            raise InvalidRequest("says nothing of the picture", field="messages.0.content")
        _check_glyph_texts(text)
        for number, (field, _) in enumerate(picture_parts(request["messages"])):
            if number == MOST_SOURCES:
                raise InvalidRequest(f"at most {MOST_SOURCES} pictures are edited at once", field=field)

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(_messages(request))

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        """Return the ids of the message, with one placeholder for each source picture."""
        ids = self._tokenizer.encode(_messages(request))
        pictures = [token for token in ids if token < self._image_tokens or token == self._placeholder]
        if pictures != self._picture * len(list(picture_parts(request["messages"]))):
            # The template writes other pictures than the message has, or its text does.
            raise InvalidRequest("the text contains a token of pictures", field="messages.0.content")
        return ids

    def encode_prompt(self, request: Mapping[str, Any], sources: Sequence[Sequence[int]], grids: Grids) -> Prompt:
        """Return the prompt of a message with the image tokens of each source picture, and of the grids to write.

        Raise InvalidRequest for a message with another number of pictures.
        """
        ids: list[int] = []
        begins: list[int] = []
        message = self.encode(request)
        if message.count(self._placeholder) != len(sources):
            raise InvalidRequest(f"{len(sources)} pictures of the message were encoded", field="messages.0.content")
        for token in message:
            if token == self._placeholder:
                token_ids = sources[len(begins)]
                begins.append(len(ids))
                ids.extend(token_ids)
            else:
                ids.append(token)
        ids.extend(self._tokenizer.encode_text(f"{grids.prompt_text}{self._begin}"))
        return Prompt(ids, begins)

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Return the most tokens that the prompt may have.

        Raises InvalidRequest for a source picture whose sides the model does not take.
        """
        in_pictures = 0
        for field, number in picture_parts(request["messages"]):
            info = media[number]
            if isinstance(info, ImageInfo):
                in_pictures += self._source_grids.of(info.height, info.width, field).tokens
        return self._tokenizer.count(_messages(request), self.max_model_len) + in_pictures + _LONGEST_END

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        """Return the tokens that a prompt may have where the largest picture follows it."""
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages if stage.kind == "ar"]
        return min(*lengths, self.max_model_len) - MOST_TOKENS


def glyph_texts(prompt: str) -> list[str]:
    """Return the words in quotes of a prompt, which the picture is to show letter by letter, single quotes first.

    The pairs of quotes and their order are those of Diffusers' ``GlmImagePipeline.get_glyph_texts``.
    """
    return [text for quotes in _QUOTES for text in quotes.findall(prompt)]


def _check_glyph_texts(prompt: str) -> None:
    """Raise InvalidRequest for more text in quotes than the glyph encoder takes."""
    size = sum(len(text.encode()) + 1 for text in glyph_texts(prompt))  # each has an end
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"{size} bytes in quotes; a picture shows at most {MOST_BYTES}", field="messages.0.content"
        )


def text_of(request: Mapping[str, Any]) -> str:
    """Return the text of a request's one message. Raise InvalidRequest for any other request."""
    messages = request["messages"]
    for number, message in enumerate(messages):
        if message["role"] != "user":
            raise InvalidRequest("a picture is drawn of one user message", field=f"messages.{number}.role")
    if len(messages) != 1:
        raise InvalidRequest(f"a picture is drawn of one user message, not {len(messages)}", field="messages")
    content = messages[0]["content"]
    if isinstance(content, str):
        return content
    for position, part in enumerate(content):
        if part["type"] not in ("text", "image"):
            raise InvalidRequest(f"a picture is made of no {part['type']}", field=f"messages.0.content.{position}")
    return "".join(part["text"] for part in content if part["type"] == "text")


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the message as the template takes it: pictures without their media, neighbouring texts as one.

    Raise InvalidRequest as ``text_of``.
    """
    text, content = text_of(request), request["messages"][0]["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": text}]
    parts: list[dict[str, Any]] = []
    for kind, run in groupby(content, key=lambda part: part["type"]):
        if kind == "text":
            parts.append({"type": "text", "text": "".join(part["text"] for part in run)})
        else:
            parts.extend({"type": kind} for _ in run)
    return [{"role": "user", "content": parts}]
