"""``Variant``: what differs between the checkpoints that edit, by the class that their model_index.json names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json
from workers.models.qwen_image.parameters import MOST_SOURCES

PROCESSOR: Final = "processor"
"""The folder of a checkpoint with the settings of the text encoder's processor of pictures."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a text encoder was taught to read pictures.

    pictures  the most that a job may bring
    label     what stands before each in the prompt; ``{}`` is its number from 1
    pixels    the area to which each is scaled for the text encoder
    """

    pictures: int
    label: str
    pixels: int


VARIANTS: Final[Mapping[str, Variant]] = {
    "QwenImageEditPlusPipeline": Variant(MOST_SOURCES, "Picture {}: ", 384 * 384),
    "QwenImageEditPipeline": Variant(1, "", 1024 * 1024),
}
"""The class of a checkpoint → its variant. Source: Diffusers' pipelines of these names."""


def variant_of(checkpoint: Path) -> Variant:
    """Return the variant of a checkpoint. Raises ConfigError naming the file for one that does not edit."""
    file = checkpoint / "model_index.json"
    found = read_json(file).get("_class_name")
    if not isinstance(found, str) or found not in VARIANTS:
        known = " or ".join(VARIANTS)
        message = f"a {found!r:.100} does not edit pictures: pipeline qwen_image_edit takes a {known}"
        raise ConfigError(message, file=str(file), field="_class_name")
    return VARIANTS[found]
