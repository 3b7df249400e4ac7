"""``RowLayout``: what an engine keeps of each position of a captured request, packed into one row of bytes.

One row for all kinds, so that a step copies them from the device together, and a capture keeps them in one tensor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

HIDDEN_STATES = "hidden_states"
"""The last hidden states, perhaps with the input embeddings added: in each layout but that of ``INPUT_EMBEDS``."""

INPUT_EMBEDS = "input_embeds"
"""The only kind of the first rank of a pipeline, whose last rank has the hidden states: what is to be added to them."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """One kind of row: its name in the stage's output, and the dtype and the shape that it has for each position."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    of_prompt: bool = True  # False: rows only from the prompt's last position on, whose sample is the first token

    @property
    def nbytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize


class RowLayout:
    """Where each kind stands in a row of bytes. Wide dtypes come first, so that each kind is aligned to its dtype."""

    def __init__(self, kinds: Sequence[RowKind]) -> None:
        """Raise ValueError for a name that two kinds have, and for a kind whose rows have no bytes."""
        self.kinds = tuple(sorted(kinds, key=lambda kind: -kind.dtype.itemsize))
        names = [kind.name for kind in kinds]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two kinds of rows have the name {min(twice)}")
        if empty := [kind.name for kind in kinds if kind.nbytes == 0]:
            raise ValueError(f"the rows of {empty[0]} have no bytes")
        widest = self.kinds[0].dtype.itemsize
        self._padding = -sum(kind.nbytes for kind in self.kinds) % widest

    @property
    def nbytes(self) -> int:
        """The bytes of one row of all kinds."""
        return sum(kind.nbytes for kind in self.kinds) + self._padding

    def pack(self, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return uint8 [n, nbytes] of each kind's rows [n, *shape] by name; of one kind that is contiguous, a view.

        Raises ValueError naming a kind whose rows are missing or of another dtype or shape.
        """
        parts = [_as_bytes(kind, rows.get(kind.name)) for kind in self.kinds]
        if self._padding:
            parts.append(parts[0].new_zeros(len(parts[0]), self._padding))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def unpack(self, rows: torch.Tensor, prompt_tokens: int) -> dict[str, torch.Tensor]:
        """Return each kind's rows by name, of a request's packed rows uint8 [n, nbytes]; of one kind alone, a view.

        ``prompt_tokens``: how many positions are the prompt's, P. A kind that is not of the prompt has the n - P + 1
        rows from the prompt's last position on.
        """
        found = {}
        begin = 0
        for kind in self.kinds:
            first = 0 if kind.of_prompt else max(prompt_tokens - 1, 0)
            part = rows[first:, begin : begin + kind.nbytes].contiguous()
            found[kind.name] = part.view(kind.dtype).reshape(len(part), *kind.shape)
            begin += kind.nbytes
        return found


def _as_bytes(kind: RowKind, rows: torch.Tensor | None) -> torch.Tensor:
    if rows is None:
        raise ValueError(f"the model gave no rows of {kind.name}")
    if rows.dtype != kind.dtype or tuple(rows.shape[1:]) != kind.shape:
        raise ValueError(
            f"the model gave rows of {kind.name} as {rows.dtype} {list(rows.shape)}, "
            f"and they are due as {kind.dtype} {[len(rows), *kind.shape]}"
        )
    flat = rows.reshape(len(rows), math.prod(kind.shape)).contiguous()
    if flat.stride(-1) != 1:  # torch calls a tensor of one number contiguous whatever its strides, and views none such
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
