"""What a Wan checkpoint's model_index.json says of its two experts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json

TEXT_CLASS: Final = "WanPipeline"
"""The class of checkpoints that film a description."""

PICTURE_CLASS: Final = "WanImageToVideoPipeline"
"""The class of checkpoints whose videos begin with a picture."""

EXPERTS: Final = ("transformer", "transformer_2")
"""The folders of the transformer that takes the first, noisy steps, and of the one that takes the last."""


def read_boundary_ratio(checkpoint: Path, class_name: str) -> float:
    """Return the part of the times, from 0 (the video) to 1 (noise), in which the second expert works.

    Raises ConfigError naming the field for a checkpoint of another class, or not of two experts.
    """
    path = checkpoint / "model_index.json"
    index = read_json(path)
    if index.get("_class_name") != class_name:
        message = f"a {index.get('_class_name')!r:.100}, not a {class_name}"
        raise ConfigError(message, file=str(path), field="_class_name")
    if index.get("expand_timesteps"):
        raise ConfigError(
            "models with a time for each token are not supported", file=str(path), field="expand_timesteps"
        )
    ratio = index.get("boundary_ratio")
    if not isinstance(ratio, float) or not 0 < ratio < 1:
        raise ConfigError(
            f"a number between 0 and 1 is due, as checkpoints of two experts have it, not {ratio!r:.40}",
            file=str(path),
            field="boundary_ratio",
        )
    return ratio
