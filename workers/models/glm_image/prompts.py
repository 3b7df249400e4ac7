"""The prompts of GLM-Image: one message's text, the sizes of the grids, and the mark that begins a picture.

They are those of Transformers' ``GlmImageProcessor``; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.chat_template import ChatTemplate
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.glm_image.glyphs import check_glyph_texts
from workers.models.glm_image.grids import LARGEST, MOST_TOKENS, Grids, grids_of

PROCESSOR = "processor"
LANGUAGE_MODEL = "vision_language_encoder"

_LONGEST_END = len(f"{grids_of(LARGEST, LARGEST).prompt_text}<|dit_token_16384|>")  # tokens: a letter has one at most


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
        """Raise InvalidRequest for anything but one user message with a text, and for text that the model reserves."""
        text = text_of(request)
        self._tokenizer.check(request["messages"])
        if not text.strip():
            raise InvalidRequest("says nothing of the picture", field="messages.0.content")
        check_glyph_texts(text)

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(_messages(request))

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        """Return the ids of the prompt's text, which ``encode_grids`` continues."""
        ids = self._tokenizer.encode(_messages(request))
        if ids and min(ids) < self._image_tokens:
            raise InvalidRequest("the text contains a token of pictures", field="messages.0.content")
        return ids

    def encode_grids(self, grids: Grids) -> list[int]:
        """Return the ids of the prompt's end."""
        return self._tokenizer.encode_text(f"{grids.prompt_text}{self._begin}")

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        return self._tokenizer.count(_messages(request), self.max_model_len) + _LONGEST_END

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        """Return the tokens that a prompt may have where the largest picture follows it."""
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages if stage.kind == "ar"]
        return min(*lengths, self.max_model_len) - MOST_TOKENS


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
        if part["type"] != "text":
            raise InvalidRequest(
                f"this pipeline draws of text only, it edits no {part['type']}", field=f"messages.0.content.{position}"
            )
    return "".join(part["text"] for part in content)


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text_of(request)}]}]
