"""Checks of the tensors and values that an encoder is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_jobs.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


def tensor_of(tensors: Mapping[str, Any], name: str, dtype: DTypeLike, axes: str) -> NDArray[Any]:
    """Return the tensor of a name. ``axes`` names its dimensions: "FHW3" is [F, H, W, 3], a digit being a length.

    Raises ModelError, which names the tensor, where it is missing, is no numpy array, has another dtype, rank or
    length, or no values.
    """
    array = tensors.get(name)
    if not isinstance(array, np.ndarray):
        raise ModelError(f"the output has no tensor {name}", field=name)
    lengths = [int(axis) if axis.isdigit() else length for axis, length in zip(axes, array.shape, strict=False)]
    if array.dtype != np.dtype(dtype) or array.ndim != len(axes) or lengths != list(array.shape):
        raise ModelError(
            f"the tensor {name} must be {np.dtype(dtype)} [{', '.join(axes)}], not {array.dtype} {list(array.shape)}",
            field=name,
        )
    if not array.size:
        raise ModelError(f"the tensor {name} is empty: its shape is {list(array.shape)}", field=name)
    return array


def check_format(format: str, formats: Mapping[str, object]) -> None:
    """Raise ConfigError for a format that is none of ``formats``, because admission lets no other one through."""
    if format not in formats:
        raise ConfigError(f"no encoder for the format {format!r}; known: {', '.join(sorted(formats))}", field="format")


def check_sides(array: NDArray[Any], name: str, format: str, longest: int) -> None:
    """Raise ModelError where pixels [..., H, W, 3] are wider or higher than a format's ``longest`` side."""
    height, width = array.shape[-3:-1]
    if max(height, width) > longest:
        raise ModelError(f"a side of {format} has at most {longest} pixels, not {width} x {height}", field=name)
