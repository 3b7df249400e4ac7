"""Pictures to edit, drawn of a seed, and the payload of GLM-Image's stage that encodes them."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from workers.models.glm_image.sources import Source, as_payload
from workers.stages.tensors import from_torch


def drawn(height: int, width: int, seed: int = 0) -> Image.Image:
    """A picture of soft colours."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(height // 16, 1), max(width // 16, 1), 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def pixels(picture: Image.Image) -> torch.Tensor:
    """A picture as uint8 [H, W, 3]."""
    return torch.from_numpy(np.array(picture))


def encoded(sources: Sequence[Source] = ()) -> Payload:
    """The payload of the stage ``encode``, of a job with these source pictures."""
    tensors = {name: from_torch(tensor) for name, tensor in as_payload(sources, 16).items()}  # type: ignore[arg-type]
    information = AdditionalInformationPayload(tensors, {}, key="payloads/job-1")
    return Payload(
        Manifest(kind="source_pictures", job_id="job-1", stage="encode", attempt=1), additional_information=information
    )


def source_of(token_ids: torch.Tensor, seed: int = 0) -> Source:
    """A source picture with these image tokens int64 [h, w] and latents of a seed."""
    height, width = token_ids.shape
    generator = torch.Generator().manual_seed(seed)
    return Source(token_ids, torch.randn(16, 4 * height, 4 * width, generator=generator))
