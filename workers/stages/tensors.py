"""Conversions between the tensors of payloads and torch's, on the same memory."""

import ctypes
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from omni_jobs.errors import PayloadError
from omni_jobs.payloads import Tensor

_OF_DTYPE: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}
_NAME_OF: Final = {dtype: name for name, dtype in _OF_DTYPE.items()}


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Return a payload's tensor as a CPU tensor of torch on the same memory, which it keeps alive; only for reading.

    The bytes are copied only where they are not aligned to the item size.
    """
    dtype = _OF_DTYPE[tensor.dtype]
    if tensor.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    address = np.frombuffer(tensor.data, np.uint8).ctypes.data
    if address % dtype.itemsize:
        return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)
    # torch warns when a process first meets a read-only buffer. An array on the same address does not say that it is
    # one, and carries the view that keeps the bytes alive.
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(address)
    array.owner = tensor.data  # type: ignore[attr-defined]
    return torch.frombuffer(array, dtype=dtype).reshape(tensor.shape)


def is_tensor_tree(value: object) -> bool:
    """Return whether the value is a tensor of torch, or a list, tuple or dict of them alone, which may be empty."""
    members = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    return all(isinstance(member, torch.Tensor) for member in members)


def from_torch(tensor: torch.Tensor) -> Tensor:
    """Return torch's tensor as a payload's, on the same memory if that is on the CPU and contiguous, else on a copy.

    The caller must not change ``tensor`` any more. Raises PayloadError for a dtype that payloads lack.
    """
    name = _NAME_OF.get(tensor.dtype)
    if name is None:
        raise PayloadError(f"{tensor.dtype} cannot be in a payload", field="dtype")
    contiguous = tensor.detach().to("cpu").contiguous()
    # torch calls one element or none contiguous with any stride, and a view of bytes with that stride fails.
    flat = contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)
    return Tensor(name, tuple(tensor.shape), flat.numpy().data.toreadonly())
