"""Keeps LoRA adapters off requests that name none, when vLLM runs on a CPU.

vLLM marks the rows of such a request with the adapter index -1. Its GPU kernels skip them. Its functions for CPUs take
the index as Python's, so that the last adapter changes these rows (vLLM's pull request 48421 describes it).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

OPERATIONS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def skip_rows_without_adapter() -> None:
    """Replace vLLM's functions, in this process, by ones that add nothing to rows without an adapter."""
    for name in OPERATIONS:
        operation = getattr(lora_ops, name)
        if not hasattr(operation, "__wrapped__"):
            for module in (lora_ops, punica_cpu):
                setattr(module, name, _skipping(operation))


def _skipping(operation: Callable[..., None]) -> Callable[..., None]:
    @wraps(operation)
    def skipping(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output_tensor: torch.Tensor,
        lora_indices_tensor: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Run the operation with zeros for the rows [n, K] of ``inputs`` whose index is -1: it is linear in them."""
        kept = inputs.masked_fill((lora_indices_tensor < 0)[:, None], 0)
        operation(kept, weights, output_tensor, lora_indices_tensor, *args, **kwargs)

    return skipping
