"""Additional information: the named tensors and the small JSON values of a payload.

The tensors of a file are flat: ``tensors.NAME``, and ``tensors.NAME.MEMBER`` for a member of a list or a dict.
``dump_structure`` records which of them form lists and dicts, and ``load_structure`` puts them together again.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads.header_json import check_text, dump, load
from omni_jobs.payloads.refusals import brief, over_limit
from omni_jobs.payloads.tensor import Tensor
from omni_jobs.payloads.wire_limits import MAX_VALUES_BYTES, MAX_VALUES_DEPTH

TENSORS: Final = "tensors"
_WORD: Final = "[A-Za-z0-9_-]{1,64}"
_NAME: Final = re.compile(rf"{_WORD}\Z")
_FLAT_NAME: Final = re.compile(rf"{TENSORS}(?:\.{_WORD}){{1,2}}\Z")
_Value = TypeVar("_Value", bool, int, float, str, list, dict)  # type: ignore[type-arg]

TensorEntry = Tensor | list[Tensor] | Mapping[str, Tensor]
"""One tensor, a list of tensors, or a dict of tensors: what one name of a payload stands for."""


@dataclass(frozen=True, slots=True)
class AdditionalInformationPayload:
    """The named tensors and small JSON values of a payload. A name is 1 to 64 of ``A-Z a-z 0-9 _ -``.

    tensors  name → a tensor, a list of tensors, or a dict of tensors
    values   name → any JSON
    key      the payload's key in the object store, for errors
    stage    the stage that reads it, for errors
    """

    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, compare=False)
    stage: str | None = field(default=None, compare=False)

    def tensor(
        self, name: str, *, dtypes: frozenset[str] | None = None, rank: int | None = None, finite: bool = False
    ) -> Tensor:
        """Return the tensor called ``name``.

        Raises PayloadCorrupt when it is missing, is a list or dict, its dtype or rank is not one asked for, or an
        element is an infinity or a NaN and ``finite`` is asked for, which reads every byte.
        """
        entry = self.tensors.get(name)
        path = f"{TENSORS}.{name}"
        if entry is None:
            self._refuse("missing", path)
        if not isinstance(entry, Tensor):
            self._refuse("not one tensor", path)
        if dtypes is not None and entry.dtype not in dtypes:
            self._refuse(f"{entry.dtype}, not {' or '.join(sorted(dtypes))}", f"{path}.dtype")
        if rank is not None and len(entry.shape) != rank:
            self._refuse(f"rank {len(entry.shape)}, not {rank}", f"{path}.shape")
        if finite and not entry.is_finite():
            self._refuse("an element is not finite", path)
        return entry

    def value(self, name: str, type_: type[_Value]) -> _Value:
        """Return the value called ``name``. Raises PayloadCorrupt if it is missing or no ``type_``: 1 is no float."""
        if name not in self.values:
            self._refuse("missing", f"values.{name}")
        value = self.values[name]
        if type(value) is not type_:
            self._refuse(f"{type(value).__name__}, not {type_.__name__}", f"values.{name}")
        return value

    def _refuse(self, message: str, path: str) -> NoReturn:
        raise PayloadCorrupt(message, field=path, key=self.key, stage=self.stage)


def _check_name(name: object, field: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise PayloadError(f"{brief(name)} is not a name: 1 to 64 of A-Z a-z 0-9 _ -", field=field)


# Tensors


def is_flat_name(name: str) -> bool:
    """Return whether a tensor of a file may have this name: ``tensors.NAME`` or ``tensors.NAME.MEMBER``."""
    return _FLAT_NAME.match(name) is not None


def flatten(tensors: Mapping[str, TensorEntry]) -> list[tuple[str, Tensor]]:
    """Return (flat name, tensor) of every tensor. Raises PayloadError for a name that is not allowed."""
    flat: list[tuple[str, Tensor]] = []
    for name, entry in tensors.items():
        _check_name(name, TENSORS)
        path = f"{TENSORS}.{name}"
        if isinstance(entry, Tensor):
            flat.append((path, entry))
        elif isinstance(entry, Mapping):
            for member in entry:
                _check_name(member, path)
            flat += [(f"{path}.{member}", tensor) for member, tensor in entry.items()]
        else:
            flat += [(f"{path}.{index}", tensor) for index, tensor in enumerate(entry)]
    return flat


def dump_structure(tensors: Mapping[str, TensorEntry]) -> str:
    """Return as JSON which tensors form lists and dicts: name → null for a tensor, a length, or a dict's names."""
    structure: dict[str, int | list[str] | None] = {}
    for name, entry in tensors.items():
        if isinstance(entry, Tensor):
            structure[name] = None
        else:
            structure[name] = list(entry) if isinstance(entry, Mapping) else len(entry)
    return dump(structure, "structure")


def load_structure(text: str, tensors: dict[str, Tensor]) -> dict[str, TensorEntry]:
    """Return the entries that ``dump_structure`` described, made of ``tensors``: a file's, by their flat names.

    A tensor that is used is taken out of ``tensors``, so that the caller sees which ones are left over.
    Raises PayloadError for a structure that is not valid, or that names a tensor the file lacks.
    """
    structure = load(text, "structure")
    if not isinstance(structure, dict):
        raise PayloadCorrupt("not a JSON object", field="structure")
    entries: dict[str, TensorEntry] = {}
    for name, members in structure.items():
        _check_name(name, "structure")
        path = f"{TENSORS}.{name}"
        if members is None:
            entries[name] = _take(tensors, path)
        elif type(members) is int and 0 <= members <= len(tensors):
            entries[name] = [_take(tensors, f"{path}.{index}") for index in range(members)]
        elif isinstance(members, list):
            for member in members:
                _check_name(member, f"structure.{name}")
            entries[name] = {member: _take(tensors, f"{path}.{member}") for member in members}
        else:
            raise PayloadCorrupt(f"{brief(members)} is no structure of a tensor", field=f"structure.{name}")
    return entries


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise PayloadCorrupt("missing", field=name)
    return tensors.pop(name)


# Values


def dump_values(values: Mapping[str, Any]) -> str:
    """Return the values as JSON. Raises PayloadError and PayloadTooLarge for values that a reader would refuse."""
    _check_values(values)
    text = dump(dict(values), "values")
    _check_size(text)
    return text


def load_values(text: str) -> dict[str, Any]:
    """Return the values in the JSON of ``dump_values``, checked. Raises PayloadError and PayloadTooLarge."""
    _check_size(text)
    values = load(text, "values")
    _check_values(values)
    return dict(values)


def _check_size(text: str) -> None:
    size = len(text.encode())
    if size > MAX_VALUES_BYTES:
        raise PayloadTooLarge(over_limit(size, MAX_VALUES_BYTES), field="values")


def _check_values(values: object) -> None:
    """Refuse what JSON does not carry unchanged: other types, non-finite numbers, lone surrogates, deep nesting."""
    if not isinstance(values, Mapping):
        raise PayloadError("not an object", field="values")
    for name, value in values.items():
        _check_name(name, "values")
        _check_value(value, f"values.{name}", MAX_VALUES_DEPTH)


def _check_value(value: object, field: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(value, field)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise PayloadError("an integer of more than 64 bits", field=field)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError("a number that is not finite", field=field)
    elif isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise PayloadTooLarge("nested too deeply", field=field)
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise PayloadError(f"the name {brief(name)} is not text", field=field)
                check_text(name, field)
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, field, depth - 1)
    else:
        raise PayloadError(f"JSON has no {type(value).__name__}", field=field)
