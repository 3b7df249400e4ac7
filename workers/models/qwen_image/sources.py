"""``Sources``: the pictures that a job edits, as the transformer sees them: clean tokens behind those of the target."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.vae import finite_floats
from workers.models.qwen_image.latents import TOKEN
from workers.models.qwen_image.parameters import MOST_SOURCES, PATCH
from workers.models.qwen_image.size import Size
from workers.runners.diffusion.prompt import DiffusionPrompt

_LONGEST = 32_768  # pixels of a side; of more the transformer has no positions on either side of the middle


class Sources(NamedTuple):
    """The pictures of one edit.

    tokens  [S, 64], those of all pictures in their order
    sizes   of each picture
    """

    tokens: torch.Tensor
    sizes: tuple[Size, ...]

    @classmethod
    def of(cls, prompt: DiffusionPrompt[Any]) -> Sources:
        """Return the sources of a prompt: a tensor ``source_tokens`` and a value ``source_sizes``.

        Raises ModelError naming the one that is missing, does not fit or is not finite.
        """
        sizes = _sizes(prompt.values.get("source_sizes"))
        due = sum(size.tokens for size in sizes), TOKEN
        tokens = prompt.tensors.get("source_tokens")
        return cls(finite_floats(tokens, "source_tokens", lambda shape: shape == due, str(list(due))), sizes)


def _sizes(sizes: object) -> tuple[Size, ...]:
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= MOST_SOURCES:
        raise ModelError(f"sizes of 1 to {MOST_SOURCES} pictures are due", field="source_sizes")
    for number, size in enumerate(sizes):
        sides = size if isinstance(size, list) and len(size) == 2 else [None]
        if any(type(side) is not int or side % PATCH or not PATCH <= side <= _LONGEST for side in sides):
            raise ModelError(f"{size!r:.40} are no sides of multiples of {PATCH}", field=f"source_sizes.{number}")
    return tuple(Size(*size) for size in sizes)
