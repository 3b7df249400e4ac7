"""Qwen-Image's own prompt: the text around a description, in which its text encoder reads it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

PREFIX: Final = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
SUFFIX: Final = "<|im_end|>\n<|im_start|>assistant\n"

PREFIX_TOKENS: Final = 34
"""The tokens of PREFIX. The transformer never sees their rows: it was trained without them."""

MAX_TEXT_TOKENS: Final = 1024
"""The longest description, SUFFIX included, in tokens. Diffusers cuts a longer one; omni-jobs refuses it."""

MAX_EDIT_TOKENS: Final = 2048
"""The most tokens of an edit's prompt without those that the transformer never sees: pictures and instruction."""


class QwenImageTemplate:
    """A ``PromptTemplate`` of one message, whose text is the description."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the description between PREFIX and SUFFIX."""
        return f"{PREFIX}{description(messages)}{SUFFIX}"


def description(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first message, whose parts are all text."""
    content = messages[0]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
