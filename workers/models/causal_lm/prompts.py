"""The prompts of causal language models in the Hugging Face layout, which take text alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.chat_template import ChatTemplate, PromptTemplate
from omni_jobs.prompts.checkpoint_files import positive, read_json
from omni_jobs.prompts.messages import offered_tools, strings_of
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer

# The names of one number in the config.json of different families; the first one present counts.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_SIZES = ("hidden_size", "n_embd", "d_model")

_HEADS = ("ForCausalLM", "LMHeadModel")


class CausalLmPromptRenderer:
    """The prompt renderer of a causal language model's checkpoint."""

    longest_audio_s = None  # it takes no audio

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file, a field or the chat template is missing."""
        file = str(model_dir / "config.json")
        config = read_json(model_dir / "config.json")
        nested = config.get("text_config")
        within: tuple[str, ...] = ("text_config",) if isinstance(nested, dict) else ()
        text = nested if isinstance(nested, dict) else config
        self.max_model_len = positive(config, (*within, _first(text, _LENGTHS)), file)
        self.hidden_size = positive(config, (*within, _first(text, _SIZES)), file)
        self._template = self.load_template(model_dir)
        self.takes_tools = isinstance(self._template, ChatTemplate) and self._template.takes_tools
        self._tokenizer = PromptTokenizer(model_dir, self._template)

    def load_template(self, model_dir: Path) -> PromptTemplate:
        """Return the template of the prompts: the checkpoint's own. A family with another format overrides this."""
        return ChatTemplate(model_dir)

    def messages_of(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a request's messages as the template takes them: each with one string, and its calls with objects.

        Raise InvalidRequest for a medium. A family whose template takes parts overrides this.
        """
        return [{**each, "content": _text(each["content"], n)} for n, each in enumerate(with_read_calls(request))]

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        architectures = config.get("architectures")
        return isinstance(architectures, list) and any(str(name).endswith(_HEADS) for name in architectures)

    def check(self, request: Mapping[str, Any]) -> None:
        messages = request["messages"]
        self._tokenizer.check(messages)
        self._tokenizer.check_words(strings_of(offered_tools(request), "tools"))
        for number, message in enumerate(messages):
            self._tokenizer.check_words(strings_of(_calls(message), f"messages.{number}.tool_calls"))
            self._tokenizer.check_words(strings_of(message.get("tool_call_id", ""), f"messages.{number}.tool_call_id"))

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template_for(request).render(self.messages_of(request))

    def encode(self, request: Mapping[str, Any]) -> Sequence[int] | None:
        return self._tokenizer_for(request).encode(self.messages_of(request))

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        return self._tokenizer_for(request).count(self.messages_of(request), self.max_model_len)

    def _template_for(self, request: Mapping[str, Any]) -> PromptTemplate:
        tools = offered_tools(request)
        if tools and isinstance(self._template, ChatTemplate):
            return self._template.with_tools(tools)
        return self._template

    def _tokenizer_for(self, request: Mapping[str, Any]) -> PromptTokenizer:
        template = self._template_for(request)
        return self._tokenizer if template is self._template else self._tokenizer.with_template(template)

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        lengths = [stage.engine.get("max_model_len") or self.max_model_len for stage in stages]
        return min(*lengths, self.max_model_len) - 1  # room for a reply of one token


def _first(config: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if name in config), names[0])


def with_read_calls(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a request's messages as Transformers' templates take them: with the arguments of calls of tools read."""
    return [{**each, **({"tool_calls": calls} if (calls := _calls(each)) else {})} for each in request["messages"]]


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's calls of tools with arguments as an object."""
    return [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]


def _text(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    for position, part in enumerate(content):
        if part["type"] != "text":
            raise InvalidRequest(
                f"this model takes text only, no {part['type']}", field=f"messages.{number}.content.{position}"
            )
    return "".join(part["text"] for part in content)
