"""Named tensors and small values, and the structure by which lists and dicts of tensors lie flat in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads.names import TENSORS, check_name
from omni_jobs.payloads.refusals import shown
from omni_jobs.payloads.strict_json import dump, load
from omni_jobs.payloads.tensor import Tensor

__all__ = ["AdditionalInformationPayload", "TensorEntry", "dump_structure", "flatten", "load_structure"]

_Value = TypeVar("_Value", bool, int, float, str, list, dict)  # type: ignore[type-arg]

TensorEntry = Tensor | list[Tensor] | Mapping[str, Tensor]
"""What a name may stand for: one tensor, a list of them, or a dict of them."""


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
        at = f"{TENSORS}.{name}"
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


def flatten(tensors: Mapping[str, TensorEntry]) -> list[tuple[str, Tensor]]:
    """Every tensor with its name in the file. Raises PayloadError for what is no name."""
    named: list[tuple[str, Tensor]] = []
    for name, entry in tensors.items():
        check_name(name, TENSORS)
        at = f"{TENSORS}.{name}"
        if isinstance(entry, Tensor):
            named.append((at, entry))
        elif isinstance(entry, Mapping):
            for member in entry:
                check_name(member, at)
            named += [(f"{at}.{member}", tensor) for member, tensor in entry.items()]
        else:
            named += [(f"{at}.{index}", tensor) for index, tensor in enumerate(entry)]
    return named


def dump_structure(tensors: Mapping[str, TensorEntry]) -> str:
    """Name → null for a tensor, a length for a list, names for a dict."""
    return dump({name: _shape_of(entry) for name, entry in tensors.items()}, "structure")


def _shape_of(entry: TensorEntry) -> int | list[str] | None:
    if isinstance(entry, Tensor):
        return None
    return list(entry) if isinstance(entry, Mapping) else len(entry)


def load_structure(text: str, tensors: dict[str, Tensor]) -> dict[str, TensorEntry]:
    """Takes out of ``tensors`` what the structure mentions. Raises PayloadError."""
    entries: dict[str, TensorEntry] = {}
    for name, shape in (_seen_before if len(text) <= _SHORT else _members)(text):
        at = f"{TENSORS}.{name}"
        if shape is None:
            entries[name] = _take(tensors, at)
        elif type(shape) is int and 0 <= shape <= len(tensors):
            entries[name] = [_take(tensors, f"{at}.{index}") for index in range(shape)]
        elif isinstance(shape, list):
            for member in shape:
                check_name(member, f"structure.{name}")
            entries[name] = {member: _take(tensors, f"{at}.{member}") for member in shape}
        else:
            raise PayloadCorrupt(f"{shown(shape)} says nothing about a tensor", field=f"structure.{name}")
    return entries


def _members(text: str) -> tuple[tuple[str, Any], ...]:
    """Names, and what the structure says of each."""
    structure = load(text, "structure")
    if not isinstance(structure, dict):
        raise PayloadCorrupt("not a JSON object", field="structure")
    for name in structure:
        check_name(name, "structure")
    return tuple(structure.items())


_SHORT: Final = 256  # characters
_seen_before: Final = lru_cache(maxsize=256)(_members)  # the payloads of one stage are alike


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise PayloadCorrupt("missing", field=name)
    return tensors.pop(name)
