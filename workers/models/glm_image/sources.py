"""``Source``: a picture that a job edits, encoded: as image tokens, and as latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload
from omni_jobs.pipelines.flows import FLOATS
from workers.models.glm_image.grids import PIXELS
from workers.models.pictures.vae import LATENT
from workers.stages.tensors import to_torch
from workers.stages.types import TensorTree

SIDE = PIXELS // LATENT
"""Latents to a side of an image token."""


class Source(NamedTuple):
    """One encoded picture.

    token_ids  int64 [h, w]
    latents    float [C, 4 h, 4 w]
    """

    token_ids: torch.Tensor
    latents: torch.Tensor


def as_payload(sources: Sequence[Source], channels: int) -> dict[str, TensorTree]:
    """Return the tensors of the flow ``source_pictures``: those of all pictures one after the other."""
    grids = torch.tensor([list(source.token_ids.shape) for source in sources], dtype=torch.int64)
    no_ids, no_latents = torch.zeros(0, dtype=torch.int64), torch.zeros(channels, 0)
    return {
        "grids": grids.reshape(-1, 2),
        "token_ids": torch.cat([no_ids, *(source.token_ids.flatten().cpu() for source in sources)]),
        "latents": torch.cat([no_latents, *(source.latents.flatten(1).float().cpu() for source in sources)], dim=1),
    }


def sources_of(information: AdditionalInformationPayload) -> list[Source]:
    """Return the pictures of a payload ``source_pictures``. Raise PayloadCorrupt naming what is missing or wrong."""
    grids = to_torch(information.tensor("grids", dtypes=frozenset({"I64"}), rank=2))
    token_ids = to_torch(information.tensor("token_ids", dtypes=frozenset({"I64"}), rank=1))
    latents = to_torch(information.tensor("latents", dtypes=FLOATS, rank=2))
    sizes: list[tuple[int, int]] = [(int(height), int(width)) for height, width in grids]
    counts = [height * width for height, width in sizes]
    if min((side for size in sizes for side in size), default=1) < 1 or sum(counts) != len(token_ids):
        raise PayloadCorrupt(
            f"{sizes} have not {len(token_ids)} tokens",
            field="tensors.grids",
            key=information.key,
            stage=information.stage,
        )
    return [
        # Copies let the payload's memory be freed.
        Source(ids.view(height, width).clone(), each.reshape(-1, SIDE * height, SIDE * width).clone())
        for (height, width), ids, each in zip(
            sizes,
            torch.split_with_sizes(token_ids, counts),
            torch.split_with_sizes(latents, [SIDE * SIDE * count for count in counts], dim=1),
            strict=True,
        )
    ]
