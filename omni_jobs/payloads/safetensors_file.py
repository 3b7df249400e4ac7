"""A safetensors file: a header of JSON, then the tensors' bytes. What it means is others' business.

Writing yields a header for tensors in the order of the file; reading splits a file
into header and data and checks every tensor against the data, before a byte of it
is touched (but those of BOOL).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads.names import TENSORS
from omni_jobs.payloads.refusals import shown, too_many
from omni_jobs.payloads.strict_json import dump, load
from omni_jobs.payloads.tensor import ITEM_BYTES, Tensor, tensor_bytes
from omni_jobs.payloads.wire_limits import MAX_EXTENT, WRITER_LIMITS, PayloadLimits

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["METADATA", "encode_header", "in_file_order", "read_tensors", "split_file"]

METADATA: Final = "__metadata__"
_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8


# Writing


def in_file_order(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Wider items first keeps every tensor aligned to its item size, with no gaps."""
    return sorted(named, key=lambda pair: (-ITEM_BYTES[pair[1].dtype], pair[0]))


def encode_header(placed: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> bytes:
    """The bytes that stand before the tensors, given in the order of the file. Raises PayloadTooLarge."""
    header: dict[str, Any] = {} if metadata is None else {METADATA: metadata}
    end = 0
    for name, tensor in placed:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = dump(header, "header").encode()
    length = -(-len(encoded) // _ALIGNMENT) * _ALIGNMENT
    if length > WRITER_LIMITS.max_header_bytes:
        raise PayloadTooLarge(f"{length} bytes, at most {WRITER_LIMITS.max_header_bytes}", field="header")
    return length.to_bytes(_LENGTH_BYTES, "little") + encoded.ljust(length)


# Reading, in the order of the file


def split_file(buffer: Buffer, limits: PayloadLimits) -> tuple[dict[str, Any], memoryview]:
    """The header, parsed, and a view on the data. Raises PayloadCorrupt and PayloadTooLarge."""
    file = memoryview(buffer).cast("B").toreadonly()
    if file.nbytes > limits.max_bytes:
        raise PayloadTooLarge(too_many(file.nbytes, limits.max_bytes), field="size")
    if file.nbytes < _LENGTH_BYTES:
        raise PayloadCorrupt(f"{file.nbytes} bytes are not even a header's length", field="header")
    length = int.from_bytes(file[:_LENGTH_BYTES], "little")
    if length > limits.max_header_bytes:
        raise PayloadTooLarge(too_many(length, limits.max_header_bytes), field="header")
    end = _LENGTH_BYTES + length
    if end > file.nbytes:
        raise PayloadCorrupt(f"truncated: {file.nbytes} bytes, the header alone ends at {end}", field="header")
    if end % _ALIGNMENT:
        raise PayloadCorrupt("the header is not padded to 8 bytes", field="header")
    header = load(bytes(file[_LENGTH_BYTES:end]), "header")
    if not isinstance(header, dict):
        raise PayloadCorrupt("not a JSON object", field="header")
    return header, file[end:]


def read_tensors(
    header: Mapping[str, Any], data: memoryview, limits: PayloadLimits, *, is_name: Callable[[str], bool]
) -> dict[str, Tensor]:
    """Every tensor, by its name in the file; together they cover the data exactly.

    ``header`` is without its metadata. Raises PayloadCorrupt and PayloadTooLarge.
    """
    if len(header) > limits.max_tensors:
        raise PayloadTooLarge(f"{len(header)} tensors, at most {limits.max_tensors}", field=TENSORS)
    for name in header:
        if not is_name(name):
            raise PayloadCorrupt(f"no tensor may be called {shown(name)} here", field="header")
    placed = sorted((*_read_offsets(name, entry), name) for name, entry in header.items())
    tensors: dict[str, Tensor] = {}
    covered = 0
    for start, end, name in placed:
        entry = header[name]
        needed = _read_tensor_bytes(name, entry, limits)
        if start != covered:
            what = "overlaps the tensor before it" if start < covered else "leaves a gap before it"
            raise PayloadCorrupt(f"{what}: starts at {start}, not {covered}", field=f"{name}.data_offsets")
        if end - start != needed:
            raise PayloadCorrupt(
                f"{end - start} bytes where dtype and shape need {needed}", field=f"{name}.data_offsets"
            )
        if end > data.nbytes:
            raise PayloadCorrupt(f"truncated: ends at {end} of {data.nbytes} bytes", field=f"{name}.data_offsets")
        if start % ITEM_BYTES[entry["dtype"]]:
            raise PayloadCorrupt("not aligned to its item size", field=f"{name}.data_offsets")
        tensors[name] = _view(name, entry, data[start:end])
        covered = end
    if covered != data.nbytes:
        raise PayloadCorrupt(f"{data.nbytes - covered} bytes after the last tensor", field="size")
    return tensors


def _read_offsets(name: str, entry: object) -> tuple[int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise PayloadCorrupt("needs dtype, shape and data_offsets, nothing else", field=name)
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise PayloadCorrupt("not two offsets", field=f"{name}.data_offsets")
    for offset in offsets:
        if type(offset) is not int or not 0 <= offset <= MAX_EXTENT:
            raise PayloadCorrupt(f"{shown(offset)} is not an offset", field=f"{name}.data_offsets")
    start, end = offsets
    if end < start:
        raise PayloadCorrupt(f"ends at {end}, before its start at {start}", field=f"{name}.data_offsets")
    return start, end


def _read_tensor_bytes(name: str, entry: dict[str, Any], limits: PayloadLimits) -> int:
    if not isinstance(entry["shape"], list):
        raise PayloadCorrupt("not a list", field=f"{name}.shape")
    try:
        return tensor_bytes(entry["dtype"], entry["shape"], max_rank=limits.max_rank)
    except PayloadError as error:
        raise PayloadCorrupt(error.message, field=f"{name}.{error.field}") from error


def _view(name: str, entry: dict[str, Any], data: memoryview) -> Tensor:
    # Another byte than 0 or 1 is undefined behaviour in the libraries that compute with it.
    if entry["dtype"] == "BOOL" and data.nbytes and np.frombuffer(data, np.uint8).max() > 1:
        raise PayloadCorrupt("a BOOL that is neither 0 nor 1", field=name)
    return Tensor(entry["dtype"], tuple(entry["shape"]), data)
