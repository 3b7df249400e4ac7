"""``Variant``: what differs between the checkpoints of Qwen-Image, by the class that their model_index.json names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json
from workers.models.qwen_image.parameters import MOST_SOURCES
from workers.models.qwen_image.template import DRAW_PREFIX, EDIT_PREFIX, MAX_EDIT_TOKENS, MAX_TEXT_TOKENS

PROCESSOR: Final = "processor"
"""The folder of a checkpoint with the settings of the text encoder's processor of pictures."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a text encoder was taught to read.

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


VARIANTS: Final[Mapping[str, Variant]] = {
    "QwenImagePipeline": Variant(DRAW_PREFIX, 34, MAX_TEXT_TOKENS),
    "QwenImageEditPlusPipeline": Variant(EDIT_PREFIX, 64, MAX_EDIT_TOKENS, MOST_SOURCES, "Picture {}: ", 384 * 384),
    "QwenImageEditPipeline": Variant(EDIT_PREFIX, 64, MAX_EDIT_TOKENS, 1, "", 1024 * 1024),
}
"""The class of a checkpoint → its variant. Source: Diffusers' pipelines of these names."""


def variant_of(checkpoint: Path, *, edits: bool) -> Variant:
    """Return the variant of a checkpoint. Raises ConfigError naming the file for one that does not edit, or draw."""
    file = checkpoint / "model_index.json"
    found = read_json(file).get("_class_name")
    known = {name: each for name, each in VARIANTS.items() if (each.pictures > 0) == edits}
    if not isinstance(found, str) or found not in known:
        does, pipeline = ("edit pictures", "qwen_image_edit") if edits else ("draw", "qwen_image")
        message = f"a {found!r:.100} does not {does}: pipeline {pipeline} takes a {' or '.join(known)}"
        raise ConfigError(message, file=str(file), field="_class_name")
    return known[found]
