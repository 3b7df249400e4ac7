"""Safetensors files: a length, a header of JSON, then the bytes of the tensors.

Only the file format is here; ``omni_jobs.payloads.payload`` gives names and metadata their meaning. Every tensor is
checked against the header before a byte of the data is read. BOOL is the exception: its bytes must be 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads.header_json import dump, load
from omni_jobs.payloads.refusals import brief, over_limit
from omni_jobs.payloads.tensor import ITEM_BYTES, Tensor, tensor_bytes
from omni_jobs.payloads.wire_limits import MAX_EXTENT, MAX_HEADER_BYTES, MAX_TENSORS

if TYPE_CHECKING:
    from typing_extensions import Buffer

METADATA: Final = "__metadata__"
_ENTRY: Final = frozenset({"dtype", "shape", "data_offsets"})
_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8
_FIRST_BYTES: Final = 16 << 10  # most headers end within them


# Writing


def in_file_order(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Sort (name, tensor) pairs by item size, widest first, then by name: so all are aligned without gaps."""
    return sorted(tensors, key=lambda pair: (-ITEM_BYTES[pair[1].dtype], pair[0]))


def encode_header(tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> bytes:
    """Return the bytes of a safetensors file before its tensors: the header's length and the padded header.

    ``tensors`` are in the order of the file. Raises PayloadTooLarge for a header above a reader's default limit.
    """
    header: dict[str, Any] = {} if metadata is None else {METADATA: metadata}
    end = 0
    for name, tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = dump(header, "header").encode()
    length = -(-len(encoded) // _ALIGNMENT) * _ALIGNMENT
    if length > MAX_HEADER_BYTES:
        raise PayloadTooLarge(f"{length} bytes, at most {MAX_HEADER_BYTES}", field="header")
    return length.to_bytes(_LENGTH_BYTES, "little") + encoded.ljust(length)


# Reading, in the order of the file's bytes


def split_file(buffer: Buffer, max_bytes: int) -> tuple[dict[str, Any], memoryview]:
    """Return a safetensors file's parsed header and a read-only view of the tensors' bytes after it.

    Checks no tensor. Raises PayloadTooLarge above ``max_bytes`` or 512 levels of JSON, PayloadCorrupt for other faults.
    """
    file = memoryview(buffer).cast("B").toreadonly()
    if file.nbytes > max_bytes:
        raise PayloadTooLarge(over_limit(file.nbytes, max_bytes), field="size")
    end = _header_end(bytes(file[:_LENGTH_BYTES]), file.nbytes)
    return _load_header(bytes(file[_LENGTH_BYTES:end])), file[end:]


def read_header(read: Callable[[int, int], bytes], size: int) -> dict[str, Any]:
    """Return the parsed header of a file of ``size`` bytes, of which ``read`` returns those from one place to another.

    Raises as ``split_file`` does, and what ``read`` raises.
    """
    first = read(0, min(size, _FIRST_BYTES)) if size else b""
    end = _header_end(first[:_LENGTH_BYTES], size)
    known = first if end <= len(first) else first + read(len(first), end)
    return _load_header(known[_LENGTH_BYTES:end])


def _header_end(length_bytes: bytes, size: int) -> int:
    """Return where the header of a file of ``size`` bytes ends, given its first 8 bytes."""
    if size < _LENGTH_BYTES:
        raise PayloadCorrupt(f"{size} bytes are not even a header's length", field="header")
    length = int.from_bytes(length_bytes, "little")
    if length > MAX_HEADER_BYTES:
        raise PayloadTooLarge(over_limit(length, MAX_HEADER_BYTES), field="header")
    end = _LENGTH_BYTES + length
    if end > size:
        raise PayloadCorrupt(f"truncated: {size} bytes, the header alone ends at {end}", field="header")
    if end % _ALIGNMENT:
        raise PayloadCorrupt("the header is not padded to 8 bytes", field="header")
    return end


def _load_header(encoded: bytes) -> dict[str, Any]:
    header = load(encoded, "header")
    if not isinstance(header, dict):
        raise PayloadCorrupt("not a JSON object", field="header")
    return header


def read_tensors(header: Mapping[str, Any], data: memoryview, *, is_name: Callable[[str], bool]) -> dict[str, Tensor]:
    """Check every tensor of a header; return them by name: views of ``data``, which they cover exactly.

    ``header`` is the parsed header without its metadata; ``is_name`` says whether a tensor may have a name. Raises
    PayloadTooLarge for too many tensors, and PayloadCorrupt for other faults.
    """
    _check_names(header, is_name)
    placed = sorted((*_read_offsets(name, entry), name) for name, entry in header.items())
    tensors: dict[str, Tensor] = {}
    covered = 0
    for start, end, name in placed:
        entry = header[name]
        needed = _read_tensor_bytes(name, entry)
        if start != covered:
            fault = "overlaps the tensor before it" if start < covered else "leaves a gap before it"
            raise PayloadCorrupt(f"{fault}: starts at {start}, not {covered}", field=f"{name}.data_offsets")
        if end - start != needed:
            raise PayloadCorrupt(
                f"{end - start} bytes where dtype and shape need {needed}", field=f"{name}.data_offsets"
            )
        if end > data.nbytes:
            raise PayloadCorrupt(f"truncated: ends at {end} of {data.nbytes} bytes", field=f"{name}.data_offsets")
        if start % ITEM_BYTES[entry["dtype"]]:
            raise PayloadCorrupt("not aligned to its item size", field=f"{name}.data_offsets")
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), data[start:end])
        # Libraries that compute with a BOOL have undefined behaviour for other bytes than 0 and 1.
        if entry["dtype"] == "BOOL" and needed and np.frombuffer(data[start:end], np.uint8).max() > 1:
            raise PayloadCorrupt("a BOOL that is neither 0 nor 1", field=name)
        covered = end
    if covered != data.nbytes:
        raise PayloadCorrupt(f"{data.nbytes - covered} bytes after the last tensor", field="size")
    return tensors


class TensorHead(NamedTuple):
    """What a header says of a tensor: its name in the file, dtype, shape, and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def read_tensor_heads(header: Mapping[str, Any], *, is_name: Callable[[str], bool]) -> list[TensorHead]:
    """Return what a header says of its tensors, in its order. Raises as ``read_tensors`` does."""
    _check_names(header, is_name)
    heads = []
    for name, entry in header.items():
        _read_offsets(name, entry)
        nbytes = _read_tensor_bytes(name, entry)
        heads.append(TensorHead(name, entry["dtype"], tuple(entry["shape"]), nbytes))
    return heads


def _check_names(header: Mapping[str, Any], is_name: Callable[[str], bool]) -> None:
    if len(header) > MAX_TENSORS:
        raise PayloadTooLarge(f"{len(header)} tensors, at most {MAX_TENSORS}", field="tensors")
    for name in header:
        if not is_name(name):
            raise PayloadCorrupt(f"no tensor may be called {brief(name)} here", field="header")


def _read_offsets(name: str, entry: object) -> tuple[int, int]:
    if not isinstance(entry, dict) or entry.keys() != _ENTRY:
        raise PayloadCorrupt("needs dtype, shape and data_offsets, nothing else", field=name)
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise PayloadCorrupt("not two offsets", field=f"{name}.data_offsets")
    for offset in offsets:
        if type(offset) is not int or not 0 <= offset <= MAX_EXTENT:
            raise PayloadCorrupt(f"{brief(offset)} is not an offset", field=f"{name}.data_offsets")
    start, end = offsets
    if end < start:
        raise PayloadCorrupt(f"ends at {end}, before its start at {start}", field=f"{name}.data_offsets")
    return start, end


def _read_tensor_bytes(name: str, entry: dict[str, Any]) -> int:
    if not isinstance(entry["shape"], list):
        raise PayloadCorrupt("not a list", field=f"{name}.shape")
    try:
        return tensor_bytes(entry["dtype"], entry["shape"])
    except PayloadError as error:
        raise PayloadCorrupt(error.message, field=f"{name}.{error.field}") from error
