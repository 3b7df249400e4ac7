"""``QwenImageTemplate``: the text around a description, or around pictures and an instruction, for the text encoder."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omni_jobs.prompts.messages import picture_parts

DRAW_PREFIX: Final = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
EDIT_PREFIX: Final = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n"
)
SUFFIX: Final = "<|im_end|>\n<|im_start|>assistant\n"

MAX_TEXT_TOKENS: Final = 1024
"""The longest description, SUFFIX included, in tokens. Diffusers cuts a longer one; omni-jobs refuses it."""

MAX_EDIT_TOKENS: Final = 2048
"""The most tokens of an edit's prompt without those that the transformer never sees: pictures and instruction."""

PICTURE: Final = "<|vision_start|><|image_pad|><|vision_end|>"
"""A picture in the prompt, whose middle token the text encoder's processor repeats for each patch of the picture."""


class QwenImageTemplate:
    """A ``PromptTemplate`` of one message: its pictures, each after ``label``, then its text."""

    def __init__(self, prefix: str, label: str) -> None:
        """Take the text before all, and that before a picture, in which ``{}`` stands for its number from 1."""
        self._prefix = prefix
        self._label = label

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return pictures and text between prefix and SUFFIX, wherever the pictures stand in the message."""
        count = len(list(picture_parts(messages)))
        pictures = "".join(f"{self._label.format(number)}{PICTURE}" for number in range(1, count + 1))
        return f"{self._prefix}{pictures}{text_of_message(messages)}{SUFFIX}"


def text_of_message(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first message."""
    content = messages[0]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")
