"""``torch_dtype``: the dtype in which a part of a checkpoint runs."""

import torch


def torch_dtype(name: str | None, automatic: torch.dtype) -> torch.dtype:
    """Return the dtype that the engine settings name; None and auto: ``automatic``."""
    dtype: torch.dtype = automatic if name in (None, "auto") else getattr(torch, str(name))
    return dtype


def denoising_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype that the engine settings name; None and auto: bfloat16 on a GPU, float32 on a CPU."""
    return torch_dtype(name, torch.bfloat16 if device.type == "cuda" else torch.float32)
