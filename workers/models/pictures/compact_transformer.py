"""``load_compact``: a checkpoint's transformer, in less memory where the stage's engine settings say so.

Both ways are Diffusers' own. In 8 bit (``weights: float8``) its hooks keep the weights of most layers in float8, and
bring a layer's to the dtype of the computation while it computes. With ``offload_blocks`` the blocks stay in host
memory, and each comes to the card when it computes, the next one meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch

from workers.models.pictures.diffusers_checkpoint import load_part
from workers.stages.engine_args import OmniModelConfig

_PART = "transformer"


def load_compact(model: OmniModelConfig, class_name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the transformer of a checkpoint on the device, or in host memory where its blocks are to be offloaded.

    Raises ConfigError as ``load_part`` does.
    """
    if model.weights is None and not model.offload_blocks:
        return load_part(model.path, _PART, class_name, device, dtype)
    # By way of host memory, because a card that has no room for them whole is what this is for.
    transformer = load_part(model.path, _PART, class_name, torch.device("cpu"), dtype)
    if model.weights == "float8":
        transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    return transformer if model.offload_blocks else transformer.to(device)


def offload_blocks(transformer: Any, device: torch.device) -> None:
    """Let each block come from host memory to the device when it computes. Nothing may be added to blocks after it."""
    transformer.enable_group_offload(
        onload_device=device,
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=device.type == "cuda",
    )
