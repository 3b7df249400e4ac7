"""Render a checkpoint's chat template in Jinja's immutable sandbox, set up as Transformers sets it up."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.prompts.checkpoint_files import read_json


class PromptTemplate(Protocol):
    """Writes messages as the text of a prompt."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the messages as a prompt's text, up to the reply. Raise InvalidRequest for messages it cannot write.

        A message's content is a string, or parts for a model that takes media.
        """


class ChatTemplate:
    """A ``PromptTemplate``: the chat template of one checkpoint, which writes messages as the text of a prompt."""

    def __init__(self, model_dir: Path, *, generation_prompt: bool = True) -> None:
        """Load and compile the template. Raise ConfigError when there is none or it does not compile.

        ``generation_prompt``: whether a prompt ends in what the template writes before a reply.
        """
        source, file = _source(model_dir)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"not a chat template: {error}", file=file) from error
        self._variables: dict[str, Any] = {"add_generation_prompt": generation_prompt, **_special_tokens(model_dir)}

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        """Return this template with tools, in OpenAI's form, of which its prompts tell the model."""
        bound = copy(self)
        bound._variables = {**self._variables, "tools": tools}
        return bound

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the messages as a prompt's text, up to the reply. Raise InvalidRequest when the template fails."""
        try:
            return self._template.render(messages=messages, **self._variables)
        except TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses: {error.message}", field="messages") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the model's chat template fails: {error}", field="messages") from None


def _source(model_dir: Path) -> tuple[str, str]:
    """Return the template's text and file, of the files that Transformers reads, in its order."""
    bare = model_dir / "chat_template.jinja"
    if bare.is_file():
        return bare.read_text(encoding="utf-8"), str(bare)
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = read_json(model_dir / name, {}).get("chat_template")
        if isinstance(template, list):  # several templates, each with a name
            template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
        if isinstance(template, str):
            return template, str(model_dir / name)
    raise ConfigError("the checkpoint has no chat template", file=str(model_dir), field="chat_template")


def _special_tokens(model_dir: Path) -> dict[str, str]:
    config = read_json(model_dir / "tokenizer_config.json", {})
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


class _Generation(Extension):
    """Parse ``{% generation %}`` as its content alone: the tag marks the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012 — Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON, as Transformers' filter does; Jinja's own ``tojson`` escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
