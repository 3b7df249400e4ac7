"""Any causal language model of the Hugging Face layout: text in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.chat_template import ChatTemplate
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer

__all__ = ["CausalLmPromptRenderer"]

# What families call the same number in config.json; the first one there counts.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_SIZES = ("hidden_size", "n_embd", "d_model")

_HEADS = ("ForCausalLM", "LMHeadModel")


class CausalLmPromptRenderer:
    """A causal language model's prompts."""

    longest_audio_s = None  # it hears nothing

    def __init__(self, model_dir: Path) -> None:
        """Raises ConfigError for a checkpoint that lacks a file, a field or a chat template."""
        file = str(model_dir / "config.json")
        config = read_json(model_dir / "config.json")
        nested = config.get("text_config")
        within: tuple[str, ...] = ("text_config",) if isinstance(nested, dict) else ()
        text = nested if isinstance(nested, dict) else config
        self.max_model_len = positive(config, (*within, _first(text, _LENGTHS)), file)
        self.hidden_size = positive(config, (*within, _first(text, _SIZES)), file)
        self._template = ChatTemplate(model_dir)
        self._tokenizer = PromptTokenizer(model_dir, self._template)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        architectures = config.get("architectures")
        return isinstance(architectures, list) and any(str(name).endswith(_HEADS) for name in architectures)

    def check(self, request: Mapping[str, Any]) -> None:
        self._tokenizer.check(request["messages"])

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(_plain(request["messages"]))

    def encode(self, request: Mapping[str, Any]) -> list[int]:
        return self._tokenizer.encode(_plain(request["messages"]))

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        return self._tokenizer.count(_plain(request["messages"]), self.max_model_len)

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        lengths = [stage.engine.max_model_len or self.max_model_len for stage in stages]
        return min(*lengths, self.max_model_len) - 1  # a reply of one token at least


def _first(config: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if name in config), names[0])


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every content one string, as these templates want it. Raises InvalidRequest for a medium."""
    return [{**message, "content": _text(message["content"], number)} for number, message in enumerate(messages)]


def _text(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    for position, part in enumerate(content):
        if part["type"] != "text":
            raise InvalidRequest(
                f"this model takes text only, no {part['type']}", field=f"messages.{number}.content.{position}"
            )
    return "".join(part["text"] for part in content)
