"""What stages hand on, as bytes: a manifest, named tensors and small values.

A payload is a safetensors file (docs/payloads.md): any safetensors reader opens it,
but only files with our manifest are read here. Encoding joins nothing: it yields a
header and views on the tensors. Decoding yields views on the buffer, after every
check; it takes memory for the header alone, and nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

import numpy as np

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.files import map_file, translated_os_errors, write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = [
    "FLOAT_DTYPES",
    "INTEGER_DTYPES",
    "PAYLOAD_VERSION",
    "AdditionalInformationPayload",
    "Manifest",
    "Payload",
    "PayloadLimits",
    "PromptEmbedsPayload",
    "Tensor",
    "TensorEntry",
]

PAYLOAD_VERSION: Final = 1

_ITEM_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""The allowed dtypes, by safetensors' names, and their bytes per element."""

FLOAT_DTYPES: Final = frozenset({"F16", "BF16", "F32", "F64"})
INTEGER_DTYPES: Final = frozenset({"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})

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
_OF_NUMPY_NAME: Final = {name: dtype for dtype, name in _NUMPY_NAMES.items()} | {"bfloat16": "BF16"}

_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8
_MAX_EXTENT: Final = 2**63 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}\Z")
_PROMPT_EMBEDS: Final = "prompt_embeds"
_TENSORS: Final = "tensors"
_METADATA: Final = "__metadata__"
_MANIFEST_KEY: Final = "omni_jobs.manifest"
_STRUCTURE_KEY: Final = "omni_jobs.structure"
_VALUES_KEY: Final = "omni_jobs.values"

_Value = TypeVar("_Value", bool, int, float, str, list, dict)  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """How much a reader takes; the writer's header obeys the defaults.

    max_bytes          the whole file
    max_header_bytes   the JSON header, which holds manifest, structure and values
    max_tensors        tensors in one file, members of lists and dicts counted
    max_rank           dimensions of one tensor
    max_values_bytes   the values as JSON
    max_values_depth   lists and objects inside each other, in the values
    """

    max_bytes: int
    max_header_bytes: int = 1 << 20
    max_tensors: int = 1024
    max_rank: int = 8
    max_values_bytes: int = 256 << 10
    max_values_depth: int = 16


_WRITER_LIMITS: Final = PayloadLimits(max_bytes=_MAX_EXTENT)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array as bytes: little-endian, C order.

    dtype  a safetensors name: BOOL, U8 … I64, F16, BF16, F32, F64
    shape  () is a scalar; a dimension may be 0
    data   a flat read-only view of bytes; whoever made it must not change it any more

    Raises PayloadError when the three do not fit.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        if self.nbytes != self.data.nbytes:
            raise PayloadError(f"{self.data.nbytes} bytes where dtype and shape need {self.nbytes}", field="data")
        if self.data.format != "B" or self.data.ndim != 1 or not self.data.c_contiguous:
            raise PayloadError("the data is not a flat view of bytes", field="data")

    @property
    def nbytes(self) -> int:
        """The bytes that dtype and shape ask for."""
        return _tensor_bytes(self.dtype, self.shape, max_rank=_WRITER_LIMITS.max_rank)

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> Tensor:
        """A view of the array; a copy only where it is not contiguous or not little-endian."""
        dtype = _OF_NUMPY_NAME.get(array.dtype.name)
        if dtype is None:
            raise PayloadError(f"numpy's {array.dtype} cannot be in a payload", field="dtype")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(dtype, tuple(array.shape), flat.data.toreadonly())

    def numpy(self) -> NDArray[Any]:
        """A read-only view as an array. Raises PayloadError for BF16, which numpy lacks."""
        name = _NUMPY_NAMES.get(self.dtype)
        if name is None:
            raise PayloadError(f"numpy has no {self.dtype}", field="dtype")
        return np.frombuffer(self.data, dtype=np.dtype(name)).reshape(self.shape)


TensorEntry = Tensor | list[Tensor] | Mapping[str, Tensor]
"""What a name may stand for: one tensor, a list of them, or a dict of them."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Whose payload it is.

    kind     what flows: the stage config's ``produces``
    attempt  the attempt of the stage run that wrote it, from 1
    """

    kind: str
    job_id: str
    stage: str
    attempt: int
    version: int = PAYLOAD_VERSION


@dataclass(frozen=True, slots=True)
class PromptEmbedsPayload:
    """Embeddings that replace those of a prompt: [tokens, hidden size], a float dtype."""

    embeds: Tensor

    def __post_init__(self) -> None:
        if len(self.embeds.shape) != 2:
            raise PayloadError(f"rank {len(self.embeds.shape)}, not 2", field=f"{_PROMPT_EMBEDS}.shape")
        if self.embeds.dtype not in FLOAT_DTYPES:
            raise PayloadError(f"{self.embeds.dtype} is not a float dtype", field=f"{_PROMPT_EMBEDS}.dtype")


@dataclass(frozen=True, slots=True)
class AdditionalInformationPayload:
    """Named tensors and small JSON values.

    tensors  name → a tensor, a list of tensors, or a dict of tensors
    values   name → anything JSON holds
    key      where it was read from, for errors
    stage    who reads it, for errors

    Names are 1 to 64 of ``A-Z a-z 0-9 _ -``.
    """

    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, compare=False)
    stage: str | None = field(default=None, compare=False)

    def tensor(self, name: str, *, dtypes: frozenset[str] | None = None, rank: int | None = None) -> Tensor:
        """The tensor of that name. Raises PayloadCorrupt when it is missing or is not what the reader needs."""
        found = self.tensors.get(name)
        at = f"{_TENSORS}.{name}"
        if found is None:
            self._refuse("missing", at)
        if not isinstance(found, Tensor):
            self._refuse("not one tensor", at)
        if dtypes is not None and found.dtype not in dtypes:
            self._refuse(f"{found.dtype}, not {' or '.join(sorted(dtypes))}", f"{at}.dtype")
        if rank is not None and len(found.shape) != rank:
            self._refuse(f"rank {len(found.shape)}, not {rank}", f"{at}.shape")
        return found

    def value(self, name: str, type_: type[_Value]) -> _Value:
        """The value of that name, of exactly that JSON type. Raises PayloadCorrupt."""
        found = self.values.get(name)
        if name not in self.values:
            self._refuse("missing", f"values.{name}")
        if type(found) is not type_:
            self._refuse(f"{type(found).__name__}, not {type_.__name__}", f"values.{name}")
        return found

    def _refuse(self, message: str, at: str) -> NoReturn:
        raise PayloadCorrupt(message, field=at, key=self.key, stage=self.stage)


@dataclass(frozen=True)
class Payload:
    """What one stage run hands on: its manifest, and either or both of the wire forms."""

    manifest: Manifest
    prompt_embeds: PromptEmbedsPayload | None = None
    additional_information: AdditionalInformationPayload | None = None

    NO_LIMITS: ClassVar[PayloadLimits] = _WRITER_LIMITS

    # Encoding

    def buffers(self) -> list[memoryview]:
        """The file: its header, then a view on each tensor. Nothing is copied.

        Raises PayloadError for names, values or sizes that a reader would refuse.
        """
        return [memoryview(self._header), *(tensor.data for _, tensor in self._in_file_order if tensor.nbytes)]

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self._header) + sum(tensor.nbytes for _, tensor in self._in_file_order)

    def write(self, path: Path) -> int:
        """Write the file, whole or not at all (not synced); its size. Raises StorageUnavailable."""
        buffers = self.buffers()
        with translated_os_errors("writing the payload", str(path)):
            return write_atomically(path, buffers)

    @cached_property
    def _in_file_order(self) -> list[tuple[str, Tensor]]:
        # Wider items first keeps every tensor aligned to its item size, with no gaps.
        return sorted(self._named(), key=lambda named: (-_ITEM_BYTES[named[1].dtype], named[0]))

    def _named(self) -> list[tuple[str, Tensor]]:
        named: list[tuple[str, Tensor]] = []
        if self.prompt_embeds is not None:
            named.append((_PROMPT_EMBEDS, self.prompt_embeds.embeds))
        if self.additional_information is not None:
            for name, entry in self.additional_information.tensors.items():
                _check_name(name, _TENSORS)
                at = f"{_TENSORS}.{name}"
                if isinstance(entry, Tensor):
                    named.append((at, entry))
                elif isinstance(entry, Mapping):
                    for member in entry:
                        _check_name(member, at)
                    named += [(f"{at}.{member}", tensor) for member, tensor in entry.items()]
                else:
                    named += [(f"{at}.{index}", tensor) for index, tensor in enumerate(entry)]
        if len(named) > _WRITER_LIMITS.max_tensors:
            raise PayloadTooLarge(f"{len(named)} tensors, at most {_WRITER_LIMITS.max_tensors}", field=_TENSORS)
        return named

    @cached_property
    def _header(self) -> bytes:
        _check_manifest(self.manifest)
        manifest = {
            "version": self.manifest.version,
            "kind": self.manifest.kind,
            "job_id": self.manifest.job_id,
            "stage": self.manifest.stage,
            "attempt": self.manifest.attempt,
        }
        metadata = {_MANIFEST_KEY: _dump(manifest, "manifest")}
        if self.additional_information is not None:
            entries = self.additional_information.tensors
            metadata[_STRUCTURE_KEY] = _dump({name: _shape_of(entry) for name, entry in entries.items()}, "structure")
            metadata[_VALUES_KEY] = _dump_values(self.additional_information.values)
        header: dict[str, Any] = {_METADATA: metadata}
        end = 0
        for name, tensor in self._in_file_order:
            start, end = end, end + tensor.nbytes
            header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        length = -(-len(encoded) // _ALIGNMENT) * _ALIGNMENT
        if length > _WRITER_LIMITS.max_header_bytes:
            raise PayloadTooLarge(f"{length} bytes, at most {_WRITER_LIMITS.max_header_bytes}", field="header")
        return length.to_bytes(_LENGTH_BYTES, "little") + encoded.ljust(length)

    # Decoding

    @classmethod
    def open(cls, path: Path, limits: PayloadLimits, *, key: str | None = None, stage: str | None = None) -> Payload:
        """Decode a file by mmap: the mapping lives as long as a tensor of it.

        The file must not be truncated or changed while it is in use; a writer
        replaces it as a whole. Raises PayloadError, and StorageUnavailable when it cannot be opened.
        """
        key = key or str(path)
        with translated_os_errors("opening the payload", key):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                if size > limits.max_bytes:
                    raise PayloadTooLarge(_too_many(size, limits.max_bytes), field="size", key=key, stage=stage)
                mapped = map_file(fd, size)
            finally:
                os.close(fd)
        return cls.decode(mapped, limits, key=key, stage=stage)

    @classmethod
    def decode(
        cls, buffer: Buffer, limits: PayloadLimits, *, key: str | None = None, stage: str | None = None
    ) -> Payload:
        """Check the bytes and view them as a payload; the tensors keep the buffer alive.

        ``key`` and ``stage`` go into errors. Raises PayloadTooLarge or PayloadCorrupt, naming the field.
        """
        try:
            payload = _decode(memoryview(buffer).cast("B").toreadonly(), limits)
        except PayloadTooLarge as error:
            raise PayloadTooLarge(error.message, field=error.field, key=key, stage=stage) from error
        except PayloadError as error:
            raise PayloadCorrupt(error.message, field=error.field, key=key, stage=stage) from error
        if payload.additional_information is None:
            return payload
        return replace(payload, additional_information=replace(payload.additional_information, key=key, stage=stage))


# What writer and reader check alike


def _tensor_bytes(dtype: object, shape: Sequence[object], *, max_rank: int) -> int:
    """The bytes of a tensor, in integers that cannot overflow."""
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise PayloadError(f"{_shown(dtype)} is not an allowed dtype", field="dtype")
    if len(shape) > max_rank:
        raise PayloadError(f"rank {len(shape)}, at most {max_rank}", field="shape")
    extent = count = _ITEM_BYTES[dtype]
    for size in shape:
        if type(size) is not int or size < 0:
            raise PayloadError(f"{_shown(size)} is not a dimension", field="shape")
        count *= size
        extent *= max(size, 1)
    # Also where a dimension is 0: array libraries multiply the others in 64 bits.
    if extent > _MAX_EXTENT:
        raise PayloadError("the product of the dimensions does not fit 64 bits", field="shape")
    return count


def _check_name(name: object, at: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise PayloadError(f"{_shown(name)} is not a name: 1 to 64 of A-Z a-z 0-9 _ -", field=at)


def _check_manifest(manifest: Manifest) -> None:
    for name in ("kind", "job_id", "stage"):
        text = getattr(manifest, name)
        if not isinstance(text, str) or not _IDENTIFIER.match(text):
            raise PayloadError(f"{_shown(text)} is not an identifier", field=f"manifest.{name}")
    if type(manifest.attempt) is not int or not 0 <= manifest.attempt <= _MAX_EXTENT:
        raise PayloadError(f"{_shown(manifest.attempt)} is not an attempt", field="manifest.attempt")
    if type(manifest.version) is not int or manifest.version != PAYLOAD_VERSION:
        raise PayloadError(f"{_shown(manifest.version)}, only {PAYLOAD_VERSION} is known", field="manifest.version")


def _check_values(values: object, limits: PayloadLimits) -> None:
    """Refuse what does not survive JSON: other types, non-finite numbers, lone surrogates, deep nesting."""
    if not isinstance(values, Mapping):
        raise PayloadError("not an object", field="values")
    for name, value in values.items():
        _check_name(name, "values")
        _check_value(value, f"values.{name}", limits.max_values_depth)


def _check_value(value: object, at: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, at)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise PayloadError("an integer of more than 64 bits", field=at)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError("a number that is not finite", field=at)
    elif isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise PayloadTooLarge("nested too deeply", field=at)
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise PayloadError(f"the name {_shown(name)} is not text", field=at)
                _check_text(name, at)
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, at, depth - 1)
    else:
        raise PayloadError(f"JSON has no {type(value).__name__}", field=at)


def _check_text(text: str, at: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadError("text that is not valid Unicode (a lone surrogate)", field=at) from None


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def _too_many(size: int, limit: int) -> str:
    return f"{size} bytes, the limit is {limit}"


# Writing


def _dump(value: object, at: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise PayloadError(str(error), field=at) from error


def _dump_values(values: Mapping[str, Any]) -> str:
    _check_values(values, _WRITER_LIMITS)
    dumped = _dump(dict(values), "values")
    size = len(dumped.encode())
    if size > _WRITER_LIMITS.max_values_bytes:
        raise PayloadTooLarge(_too_many(size, _WRITER_LIMITS.max_values_bytes), field="values")
    return dumped


def _shape_of(entry: TensorEntry) -> int | list[str] | None:
    """How the structure says it: null for a tensor, a length for a list, names for a dict."""
    if isinstance(entry, Tensor):
        return None
    return list(entry) if isinstance(entry, Mapping) else len(entry)


# Reading, in the order of the file


def _decode(file: memoryview, limits: PayloadLimits) -> Payload:
    if file.nbytes > limits.max_bytes:
        raise PayloadTooLarge(_too_many(file.nbytes, limits.max_bytes), field="size")
    header, data = _split(file, limits)
    metadata = _read_metadata(header.pop(_METADATA, None))
    manifest = _read_manifest(metadata[_MANIFEST_KEY])
    tensors = _read_tensors(header, data, limits)
    embeds = tensors.pop(_PROMPT_EMBEDS, None)
    prompt_embeds = PromptEmbedsPayload(embeds) if embeds is not None else None
    additional_information = None
    if _STRUCTURE_KEY in metadata or _VALUES_KEY in metadata:
        additional_information = AdditionalInformationPayload(
            _read_structure(metadata.get(_STRUCTURE_KEY, "{}"), tensors),
            _read_values(metadata.get(_VALUES_KEY, "{}"), limits),
        )
    if tensors:
        raise PayloadCorrupt("the structure does not mention this tensor", field=next(iter(tensors)))
    return Payload(manifest, prompt_embeds, additional_information)


def _split(file: memoryview, limits: PayloadLimits) -> tuple[dict[str, Any], memoryview]:
    if file.nbytes < _LENGTH_BYTES:
        raise PayloadCorrupt(f"{file.nbytes} bytes are not even a header's length", field="header")
    length = int.from_bytes(file[:_LENGTH_BYTES], "little")
    if length > limits.max_header_bytes:
        raise PayloadTooLarge(_too_many(length, limits.max_header_bytes), field="header")
    end = _LENGTH_BYTES + length
    if end > file.nbytes:
        raise PayloadCorrupt(f"truncated: {file.nbytes} bytes, the header alone ends at {end}", field="header")
    if end % _ALIGNMENT:
        raise PayloadCorrupt("the header is not padded to 8 bytes", field="header")
    header = _load(bytes(file[_LENGTH_BYTES:end]), "header")
    if not isinstance(header, dict):
        raise PayloadCorrupt("not a JSON object", field="header")
    return header, file[end:]


def _read_metadata(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict) or _MANIFEST_KEY not in metadata:
        raise PayloadCorrupt("not a payload of omni-jobs: a safetensors file without our manifest", field="manifest")
    for name, text in metadata.items():
        if name not in (_MANIFEST_KEY, _STRUCTURE_KEY, _VALUES_KEY):
            raise PayloadCorrupt(f"{_shown(name)} is unknown", field=_METADATA)
        if not isinstance(text, str):
            raise PayloadCorrupt("not text", field=name.removeprefix("omni_jobs."))
        _check_text(text, name.removeprefix("omni_jobs."))
    return metadata


def _read_manifest(text: str) -> Manifest:
    found = _load(text, "manifest")
    if not isinstance(found, dict) or "version" not in found:
        raise PayloadCorrupt("missing", field="manifest.version")
    # First of all: another version may have other fields.
    if type(found["version"]) is not int or found["version"] != PAYLOAD_VERSION:
        raise PayloadCorrupt(f"{_shown(found['version'])}, only {PAYLOAD_VERSION} is known", field="manifest.version")
    fields = {"version", "kind", "job_id", "stage", "attempt"}
    for name in sorted(fields ^ found.keys()):
        raise PayloadCorrupt("missing" if name in fields else f"{_shown(name)} is unknown", field="manifest")
    manifest = Manifest(**found)
    _check_manifest(manifest)
    return manifest


def _read_tensors(header: dict[str, Any], data: memoryview, limits: PayloadLimits) -> dict[str, Tensor]:
    """Every tensor, by its name in the file; together they cover the data exactly."""
    if len(header) > limits.max_tensors:
        raise PayloadTooLarge(f"{len(header)} tensors, at most {limits.max_tensors}", field=_TENSORS)
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
        if start % _ITEM_BYTES[entry["dtype"]]:
            raise PayloadCorrupt("not aligned to its item size", field=f"{name}.data_offsets")
        tensors[name] = _view(name, entry, data[start:end])
        covered = end
    if covered != data.nbytes:
        raise PayloadCorrupt(f"{data.nbytes - covered} bytes after the last tensor", field="size")
    return tensors


def _read_offsets(name: str, entry: object) -> tuple[int, int]:
    if name != _PROMPT_EMBEDS:
        prefix, *parts = name.split(".")
        if prefix != _TENSORS or not 1 <= len(parts) <= 2 or not all(map(_NAME.match, parts)):
            raise PayloadCorrupt(f"{_shown(name)} is not a tensor's name", field="header")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise PayloadCorrupt("needs dtype, shape and data_offsets, nothing else", field=name)
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise PayloadCorrupt("not two offsets", field=f"{name}.data_offsets")
    for offset in offsets:
        if type(offset) is not int or not 0 <= offset <= _MAX_EXTENT:
            raise PayloadCorrupt(f"{_shown(offset)} is not an offset", field=f"{name}.data_offsets")
    start, end = offsets
    if end < start:
        raise PayloadCorrupt(f"ends at {end}, before its start at {start}", field=f"{name}.data_offsets")
    return start, end


def _read_tensor_bytes(name: str, entry: dict[str, Any], limits: PayloadLimits) -> int:
    if not isinstance(entry["shape"], list):
        raise PayloadCorrupt("not a list", field=f"{name}.shape")
    try:
        return _tensor_bytes(entry["dtype"], entry["shape"], max_rank=limits.max_rank)
    except PayloadError as error:
        raise PayloadCorrupt(error.message, field=f"{name}.{error.field}") from error


def _view(name: str, entry: dict[str, Any], data: memoryview) -> Tensor:
    # Another byte than 0 or 1 is undefined behaviour in the libraries that compute with it.
    if entry["dtype"] == "BOOL" and data.nbytes and np.frombuffer(data, np.uint8).max() > 1:
        raise PayloadCorrupt("a BOOL that is neither 0 nor 1", field=name)
    return Tensor(entry["dtype"], tuple(entry["shape"]), data)


def _read_structure(text: str, tensors: dict[str, Tensor]) -> dict[str, TensorEntry]:
    """Takes out of ``tensors`` what the structure mentions."""
    structure = _load(text, "structure")
    if not isinstance(structure, dict):
        raise PayloadCorrupt("not a JSON object", field="structure")
    entries: dict[str, TensorEntry] = {}
    for name, shape in structure.items():
        _check_name(name, "structure")
        at = f"{_TENSORS}.{name}"
        if shape is None:
            entries[name] = _take(tensors, at)
        elif type(shape) is int and 0 <= shape <= len(tensors):
            entries[name] = [_take(tensors, f"{at}.{index}") for index in range(shape)]
        elif isinstance(shape, list):
            for member in shape:
                _check_name(member, f"structure.{name}")
            entries[name] = {member: _take(tensors, f"{at}.{member}") for member in shape}
        else:
            raise PayloadCorrupt(f"{_shown(shape)} says nothing about a tensor", field=f"structure.{name}")
    return entries


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise PayloadCorrupt("missing", field=name)
    return tensors.pop(name)


def _read_values(text: str, limits: PayloadLimits) -> dict[str, Any]:
    size = len(text.encode())
    if size > limits.max_values_bytes:
        raise PayloadTooLarge(_too_many(size, limits.max_values_bytes), field="values")
    values = _load(text, "values")
    _check_values(values, limits)
    return dict(values)


def _load(text: str | bytes, at: str) -> Any:
    """JSON of bounded size; what Python takes beyond the standard is refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise PayloadCorrupt("a name stands twice in one object", field=at)
        return found

    def constant(name: str) -> NoReturn:
        raise PayloadCorrupt(f"{name} is not JSON", field=at)

    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError:
        raise PayloadCorrupt("not UTF-8", field=at) from None
    except ValueError:  # malformed, or an integer of thousands of digits
        raise PayloadCorrupt("not JSON", field=at) from None
    except RecursionError:
        raise PayloadTooLarge("nested too deeply", field=at) from None
