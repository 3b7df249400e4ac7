"""``load_compact``: a transformer of a checkpoint, in less memory where the stage's engine settings say so.

Both ways are Diffusers' own. In 8 bit (``weights: float8``) its hooks keep the weights of most layers in float8, and
bring a layer's to the dtype of the computation while it computes. With ``offload_blocks`` the blocks stay in host
memory, and each comes to the card when it computes, the next one meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from workers.models.pictures.diffusers_checkpoint import load_part
from workers.stages.engine_args import OmniModelConfig

_Found = TypeVar("_Found")


def load_compact(
    model: OmniModelConfig, class_name: str, device: torch.device, dtype: torch.dtype, part: str = "transformer"
) -> Any:
    """Return the transformer in a checkpoint's folder ``part``, on the device or, to be offloaded, in host memory.

    Raises ConfigError as ``load_part`` does.
    """
    if model.weights is None and not model.offload_blocks:
        return load_part(model.path, part, class_name, device, dtype)
    # By way of host memory, because a card that has no room for them whole is what this is for.
    transformer = load_part(model.path, part, class_name, torch.device("cpu"), dtype)
    if model.weights == "float8":
        transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    return transformer if model.offload_blocks else transformer.to(device)


def offload_blocks(transformer: torch.nn.Module, device: torch.device) -> None:
    """Let each block come from host memory to the device when it computes. Nothing may be added to blocks after it.

    What is no block comes and goes with the forward of the whole transformer.
    """
    from diffusers.hooks.group_offloading import apply_group_offloading

    apply_group_offloading(
        transformer,
        onload_device=device,
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=device.type == "cuda",
    )


def offloaded(
    parts: Mapping[str, torch.nn.Module], run: Callable[..., _Found], device: torch.device
) -> Callable[..., _Found]:
    """Return ``run``, for which these parts of a transformer come from host memory, its blocks each when it computes.

    It is for a family that runs parts of a transformer by itself, because Diffusers offloads by the forward of a
    module. A list of modules among the parts is one of blocks, and something else must be among them.
    """
    forward = _Forward(parts, run)
    offload_blocks(forward, device)
    return forward


class _Forward(torch.nn.Module):
    """A function of some modules, as the forward of one module that has them."""

    def __init__(self, parts: Mapping[str, torch.nn.Module], run: Callable[..., Any]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._run = run

    def forward(self, *args: Any) -> Any:
        return self._run(*args)
