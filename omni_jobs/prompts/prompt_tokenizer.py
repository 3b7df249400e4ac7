"""Tokenize prompts so that a user's text never becomes the template's own markup.

``check`` refuses text that spells a special token, because it could pose as another role or as a medium.
``encode`` refuses any other text that changes the prompt's special tokens.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.prompts.chat_template import PromptTemplate

Messages = Sequence[Mapping[str, Any]]


class PromptTokenizer:
    """The tokenizer of one checkpoint with the template of its prompts. Safe for threads."""

    def __init__(self, model_dir: Path, template: PromptTemplate, tokenizer: Tokenizer | None = None) -> None:
        """Take the ``tokenizer``, or load ``tokenizer.json``. Raise ConfigError when it is missing or unreadable."""
        self._template = template
        self._tokenizer = read_tokenizer(model_dir) if tokenizer is None else tokenizer
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special_ids = frozenset(self._tokenizer.token_to_id(token) for token in special)
        self._reserved = re.compile(_any_of(special) if special else r"(?!)")
        self._longest_token = max(len(token.encode()) for token in self._tokenizer.get_vocab())

    def with_template(self, template: PromptTemplate) -> Self:
        """Return this tokenizer with another template of its prompts."""
        other = copy(self)
        other._template = template
        return other

    def check_words(self, words: Iterable[tuple[str, str]]) -> None:
        """Raise InvalidRequest, naming the field, if one of these (text, field) spells a special token."""
        for text, field in words:
            token = self._reserved_in(text)
            if token is not None:
                raise InvalidRequest(f"the text contains {token}, which the model's prompts reserve", field=field)

    def check(self, messages: Messages) -> None:
        """Raise InvalidRequest, naming the field, if a text of the messages spells a special token."""
        for number, message in enumerate(messages):
            texts = list(_texts(message["content"], f"messages.{number}.content"))
            # A token may span two parts, because the prompt joins them without a gap.
            token = self._reserved_in("".join(text for text, _ in texts))
            if token is not None:
                fields = (field for text, field in texts if self._reserved_in(text) is not None)
                raise InvalidRequest(
                    f"the text contains {token}, which the model's prompts reserve",
                    field=next(fields, f"messages.{number}.content"),
                )

    def _reserved_in(self, text: str) -> str | None:
        """Return the first special token in the text or in its normalized form."""
        normalizer = self._tokenizer.normalizer
        forms = (text,) if normalizer is None else (text, normalizer.normalize_str(text))
        match = next(filter(None, map(self._reserved.search, forms)), None)
        return None if match is None else match.group()

    def count(self, messages: Messages, limit: int) -> int:
        """Return the number of the prompt's tokens; of text far above ``limit`` a lower bound, without tokenizing it.

        Raise InvalidRequest as ``encode`` does.
        """
        prompt = self._template.render(messages)
        at_least = -(-len(prompt.encode()) // self._longest_token)
        return at_least if at_least > limit else len(self._encode(prompt, messages))

    def encode(self, messages: Messages) -> list[int]:
        """Return the prompt's token ids. Raise InvalidRequest when a text would change the prompt's structure."""
        return self._encode(self._template.render(messages), messages)

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text that is no user's: it may spell special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _encode(self, prompt: str, messages: Messages) -> list[int]:
        # The template writes every special token of a prompt, including the first.
        ids = self.encode_text(prompt)
        skeleton_ids = self.encode_text(self._template.render(_without_text(messages)))
        if self._structure(ids) != self._structure(skeleton_ids):
            raise InvalidRequest("the text would change the structure of the prompt", field="messages")
        return ids

    def _structure(self, ids: Sequence[int]) -> list[int]:
        """Return the special tokens among the ids, in order."""
        return [token for token in ids if token in self._special_ids]


def read_tokenizer(model_dir: Path) -> Tokenizer:
    """Return the tokenizer of ``tokenizer.json``. Raise ConfigError when it is missing or cannot be read."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError("the checkpoint lacks this file", file=str(path))
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _any_of(words: Iterable[str]) -> str:
    """Return a pattern that finds any of the words, and of several at one place the longest.

    It branches at each letter. So a search is as quick for the 16,000 special tokens of some models as for ten.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}  # a word ends here
    return _pattern(tree)


def _pattern(node: Mapping[str, Any]) -> str:
    branches = [re.escape(letter) + _pattern(rest) for letter, rest in node.items() if letter]
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{pattern}?" if "" in node else pattern


def _texts(content: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(content, str):
        yield content, field
        return
    for number, part in enumerate(content):
        if part["type"] == "text":
            yield part["text"], f"{field}.{number}.text"


def _without_text(messages: Messages) -> list[dict[str, Any]]:
    return [{**message, "content": _placeholder(message["content"])} for message in messages]


def _placeholder(content: Any) -> Any:
    """Return the content with one letter for each text, because templates may drop or refuse an empty one."""
    if isinstance(content, str):
        return "x" if content.strip() else content
    return [{**part, "text": _placeholder(part["text"])} if part["type"] == "text" else part for part in content]
