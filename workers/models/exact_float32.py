"""``exact_float32``: convolutions in float32 as the checkpoint's weights mean them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_float32() -> Iterator[None]:
    """Keep cuDNN's convolutions in float32: by default they round to TF32, and results differ by more than 1e-5."""
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        yield
