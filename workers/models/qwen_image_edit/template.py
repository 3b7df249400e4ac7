"""Qwen-Image-Edit's own prompt: the text around pictures and instruction, in which its text encoder reads them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omni_jobs.prompts.picture_parts import picture_parts

PREFIX: Final = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n"
)
SUFFIX: Final = "<|im_end|>\n<|im_start|>assistant\n"

PREFIX_TOKENS: Final = 64
"""The tokens of PREFIX. The transformer never sees their rows: it was trained without them."""

PICTURE: Final = "<|vision_start|><|image_pad|><|vision_end|>"
"""A picture in the prompt, whose middle token the text encoder's processor repeats for each patch of the picture."""


class QwenImageEditTemplate:
    """A ``PromptTemplate`` of one message: its pictures, each after ``label``, then its text."""

    def __init__(self, label: str) -> None:
        """Take the text before a picture, in which ``{}`` stands for its number from 1; it may be empty."""
        self._label = label

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return pictures and instruction between PREFIX and SUFFIX, wherever the pictures stand in the message."""
        count = len(list(picture_parts(messages)))
        pictures = "".join(f"{self._label.format(number)}{PICTURE}" for number in range(1, count + 1))
        return f"{PREFIX}{pictures}{instruction(messages)}{SUFFIX}"


def instruction(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first message."""
    content = messages[0]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")
