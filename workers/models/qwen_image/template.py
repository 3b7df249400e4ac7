"""``Template``: the text around a description, or around pictures and an instruction, for the text encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json
from omni_jobs.prompts.messages import picture_parts
from workers.models.pictures.description import description_of
from workers.models.qwen_image.parameters import MOST_SOURCES

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


PROCESSOR: Final = "processor"
"""The folder of a checkpoint with the settings of the text encoder's processor of pictures."""


@dataclass(frozen=True, slots=True)
class Template:
    """A ``PromptTemplate`` of one message, as a text encoder was taught to read it: its pictures, then its text.

    prefix         what its prompts begin with
    prefix_tokens  those of ``prefix``, whose rows the transformer never sees: it was trained without them
    most_tokens    of a prompt behind ``prefix``
    pictures       the most that a job may bring; 0: it draws
    label          what stands before each picture in the prompt; ``{}`` is its number from 1
    pixels         the area to which each picture is scaled for the text encoder
    """

    prefix: str
    prefix_tokens: int
    most_tokens: int
    pictures: int = 0
    label: str = ""
    pixels: int = 0

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return pictures and text between prefix and SUFFIX, wherever the pictures stand in the message."""
        count = len(list(picture_parts(messages)))
        pictures = "".join(f"{self.label.format(number)}{PICTURE}" for number in range(1, count + 1))
        return f"{self.prefix}{pictures}{description_of(messages)}{SUFFIX}"


TEMPLATES: Final[Mapping[str, Template]] = {
    "QwenImagePipeline": Template(DRAW_PREFIX, 34, MAX_TEXT_TOKENS),
    "QwenImageEditPlusPipeline": Template(EDIT_PREFIX, 64, MAX_EDIT_TOKENS, MOST_SOURCES, "Picture {}: ", 384 * 384),
    "QwenImageEditPipeline": Template(EDIT_PREFIX, 64, MAX_EDIT_TOKENS, 1, "", 1024 * 1024),
}
"""The class of a checkpoint in its model_index.json → its template. Source: Diffusers' pipelines of these names."""


def template_of(checkpoint: Path, *, edits: bool) -> Template:
    """Return the template of a checkpoint. Raises ConfigError naming the file for one that does not edit, or draw."""
    file = checkpoint / "model_index.json"
    found = read_json(file).get("_class_name")
    known = {name: each for name, each in TEMPLATES.items() if (each.pictures > 0) == edits}
    if not isinstance(found, str) or found not in known:
        does, pipeline = ("edit pictures", "qwen_image_edit") if edits else ("draw", "qwen_image")
        message = f"a {found!r:.100} does not {does}: pipeline {pipeline} takes a {' or '.join(known)}"
        raise ConfigError(message, file=str(file), field="_class_name")
    return known[found]
