"""Additional information: the named tensors and small values of a payload.

The tensors of a file are flat. ``dump_structure`` records which of them form lists and dicts; ``load_structure``
puts those together again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads.header_json import dump, load
from omni_jobs.payloads.names import TENSORS, check_name
from omni_jobs.payloads.refusals import brief
from omni_jobs.payloads.tensor import Tensor

_Value = TypeVar("_Value", bool, int, float, str, list, dict)  # type: ignore[type-arg]

TensorEntry = Tensor | list[Tensor] | Mapping[str, Tensor]
"""One tensor, a list of tensors, or a dict of tensors: what one name of a payload stands for."""


@dataclass(frozen=True, slots=True)
class AdditionalInformationPayload:
    """Named tensors and small JSON values.

    tensors  name → a tensor, a list of tensors, or a dict of tensors
    values   name → any JSON
    key      the payload's key in the object store, for errors
    stage    the stage that reads it, for errors

    A name is 1 to 64 of ``A-Z a-z 0-9 _ -``.
    """

    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, compare=False)
    stage: str | None = field(default=None, compare=False)

    def tensor(self, name: str, *, dtypes: frozenset[str] | None = None, rank: int | None = None) -> Tensor:
        """Return the tensor of that name.

        Raises PayloadCorrupt when it is missing, is a list or dict, or has another dtype or rank than asked for.
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
        return entry

    def value(self, name: str, type_: type[_Value]) -> _Value:
        """Return the value of that name. Raises PayloadCorrupt when it is missing or not of exactly that type."""
        if name not in self.values:
            self._refuse("missing", f"values.{name}")
        value = self.values[name]
        if type(value) is not type_:
            self._refuse(f"{type(value).__name__}, not {type_.__name__}", f"values.{name}")
        return value

    def _refuse(self, message: str, path: str) -> NoReturn:
        raise PayloadCorrupt(message, field=path, key=self.key, stage=self.stage)


def flatten(tensors: Mapping[str, TensorEntry]) -> list[tuple[str, Tensor]]:
    """Return every tensor with its name in the file. Raises PayloadError for a name that is not allowed."""
    flat: list[tuple[str, Tensor]] = []
    for name, entry in tensors.items():
        check_name(name, TENSORS)
        path = f"{TENSORS}.{name}"
        if isinstance(entry, Tensor):
            flat.append((path, entry))
        elif isinstance(entry, Mapping):
            for member in entry:
                check_name(member, path)
            flat += [(f"{path}.{member}", tensor) for member, tensor in entry.items()]
        else:
            flat += [(f"{path}.{index}", tensor) for index, tensor in enumerate(entry)]
    return flat


def dump_structure(tensors: Mapping[str, TensorEntry]) -> str:
    """Return the structure as JSON: name → null for a tensor, a length for a list, names for a dict."""
    return dump({name: _members(entry) for name, entry in tensors.items()}, "structure")


def _members(entry: TensorEntry) -> int | list[str] | None:
    if isinstance(entry, Tensor):
        return None
    return list(entry) if isinstance(entry, Mapping) else len(entry)


def load_structure(text: str, tensors: dict[str, Tensor]) -> dict[str, TensorEntry]:
    """Build the entries that the structure describes from the tensors of the file.

    Removes every tensor that it uses from ``tensors``. Raises PayloadError for a structure that is not valid, or
    that names a tensor the file lacks.
    """
    structure = load(text, "structure")
    if not isinstance(structure, dict):
        raise PayloadCorrupt("not a JSON object", field="structure")
    entries: dict[str, TensorEntry] = {}
    for name, members in structure.items():
        check_name(name, "structure")
        path = f"{TENSORS}.{name}"
        if members is None:
            entries[name] = _take(tensors, path)
        elif type(members) is int and 0 <= members <= len(tensors):
            entries[name] = [_take(tensors, f"{path}.{index}") for index in range(members)]
        elif isinstance(members, list):
            for member in members:
                check_name(member, f"structure.{name}")
            entries[name] = {member: _take(tensors, f"{path}.{member}") for member in members}
        else:
            raise PayloadCorrupt(f"{brief(members)} is no structure of a tensor", field=f"structure.{name}")
    return entries


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise PayloadCorrupt("missing", field=name)
    return tensors.pop(name)
