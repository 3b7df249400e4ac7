"""Tensors of a payload: bytes with a dtype and a shape, converted from and to numpy without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omni_jobs.errors import PayloadError
from omni_jobs.payloads.refusals import brief
from omni_jobs.payloads.wire_limits import MAX_EXTENT, MAX_RANK

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMPY_NAMES: Final[Mapping[str, str]] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
_DTYPES: Final = {name: dtype for dtype, name in _NUMPY_NAMES.items()} | {"bfloat16": "BF16"}

ITEM_BYTES: Final[Mapping[str, int]] = {"BF16": 2} | {
    dtype: np.dtype(name).itemsize for dtype, name in _NUMPY_NAMES.items()
}
"""The allowed dtypes, by their names in safetensors, with the bytes of one element."""

FLOAT_DTYPES: Final = frozenset({"F16", "BF16", "F32", "F64"})

_BF16_EXPONENT: Final = 0x7F80  # an exponent of ones is an infinity or a NaN
_CHECKED_ITEMS: Final = 1 << 16  # in one step of is_finite, so that its temporaries fit the CPU's cache


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array as bytes, little-endian and in C order.

    dtype  a name of safetensors: BOOL, U8 … I64, F16, BF16, F32, F64
    shape  the dimensions; () is a scalar, and a dimension may be 0
    data   a flat read-only view of the bytes; its owner must not change them any more

    Raises PayloadError when the three do not fit each other.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        needed = tensor_bytes(self.dtype, self.shape)
        if needed != self.data.nbytes:
            raise PayloadError(f"{self.data.nbytes} bytes where dtype and shape need {needed}", field="data")
        if self.data.format != "B" or self.data.ndim != 1 or not self.data.c_contiguous:
            raise PayloadError("the data is not a flat view of bytes", field="data")

    @property
    def nbytes(self) -> int:
        """The size of the tensor, in bytes."""
        return self.data.nbytes

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> Tensor:
        """Return a tensor that views an array; the array is copied if it is not contiguous or not little-endian.

        Raises PayloadError for a dtype that a payload cannot hold.
        """
        dtype = _safetensors_name(array.dtype)
        if dtype is None:
            raise PayloadError(f"numpy's {array.dtype} cannot be in a payload", field="dtype")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(dtype, tuple(array.shape), flat.data.toreadonly())

    def numpy(self) -> NDArray[Any]:
        """Return a read-only array that views the tensor. Raises PayloadError for BF16, which numpy lacks."""
        name = _NUMPY_NAMES.get(self.dtype)
        if name is None:
            raise PayloadError(f"numpy has no {self.dtype}", field="dtype")
        return np.frombuffer(self.data, dtype=np.dtype(name)).reshape(self.shape)

    def is_finite(self) -> bool:
        """Return whether no element of the tensor is an infinity or a NaN. Reads every byte."""
        if self.dtype not in FLOAT_DTYPES:
            return True
        flat = np.frombuffer(self.data, np.uint16 if self.dtype == "BF16" else np.dtype(_NUMPY_NAMES[self.dtype]))
        for start in range(0, flat.size, _CHECKED_ITEMS):
            piece = flat[start : start + _CHECKED_ITEMS]
            finite = (piece & _BF16_EXPONENT) != _BF16_EXPONENT if self.dtype == "BF16" else np.isfinite(piece)
            if not finite.all():
                return False
        return True


@lru_cache(maxsize=64)  # numpy makes a dtype's name anew each time
def _safetensors_name(dtype: np.dtype[Any]) -> str | None:
    return _DTYPES.get(dtype.name)


def tensor_bytes(dtype: object, shape: Sequence[object]) -> int:
    """Return the size in bytes of a tensor of this dtype and shape, both of which may come from a foreign file.

    Raises PayloadError, naming the field ``dtype`` or ``shape``, for a dtype that is not allowed, more than
    8 dimensions, a dimension that is no size, or a product that does not fit 64 bits.
    """
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise PayloadError(f"{brief(dtype)} is not an allowed dtype", field="dtype")
    if len(shape) > MAX_RANK:
        raise PayloadError(f"rank {len(shape)}, at most {MAX_RANK}", field="shape")
    extent = count = ITEM_BYTES[dtype]
    for size in shape:
        if type(size) is not int or size < 0:
            raise PayloadError(f"{brief(size)} is not a dimension", field="shape")
        count *= size
        extent *= max(size, 1)
    # A dimension of 0 excuses nothing, because array libraries multiply the others in 64 bits.
    if extent > MAX_EXTENT:
        raise PayloadError("the product of the dimensions does not fit 64 bits", field="shape")
    return count
