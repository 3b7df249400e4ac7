"""Rows of all kinds are the same bits after they were bytes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.runners.ar.row_layout import RowKind, RowLayout

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float64,
)
kinds = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 5), max_size=3).map(tuple), st.booleans()),
    min_size=1,
    max_size=5,
).map(lambda found: [RowKind(f"kind{n}", *each) for n, each in enumerate(found)])


def random_rows(kind: RowKind, count: int) -> torch.Tensor:
    """Every second one of more rows, so not contiguous; any bits but those of a bool, which are 0 and 1."""
    size = (2 * count, *kind.shape)
    if kind.dtype is torch.bool:
        return torch.randint(2, size).bool()[::2]
    numbers = math.prod(size) * kind.dtype.itemsize
    return torch.randint(256, (numbers,), dtype=torch.uint8).view(kind.dtype).view(size)[::2]


def bits(rows: torch.Tensor) -> list[int]:
    return rows.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).tolist()


@given(kinds, st.integers(0, 6), st.integers(0, 4))
def test_what_is_packed_is_unpacked(kinds: list[RowKind], count: int, prompt_tokens: int) -> None:
    layout = RowLayout(kinds)
    rows = {kind.name: random_rows(kind, count) for kind in kinds}
    packed = layout.pack(rows)
    assert (packed.dtype, tuple(packed.shape)) == (torch.uint8, (count, layout.nbytes))
    found = layout.unpack(packed, prompt_tokens)
    assert found.keys() == rows.keys()
    for kind in kinds:
        due = rows[kind.name] if kind.of_prompt else rows[kind.name][max(prompt_tokens - 1, 0) :]
        assert (found[kind.name].dtype, found[kind.name].shape) == (due.dtype, due.shape)
        assert bits(found[kind.name]) == bits(due)


def test_one_kind_alone_is_not_copied() -> None:
    layout = RowLayout([RowKind("hidden_states", torch.bfloat16, (4,))])
    rows = torch.randn(3, 4).bfloat16()
    packed = layout.pack({"hidden_states": rows})
    assert packed.data_ptr() == rows.data_ptr()
    assert layout.unpack(packed, 1)["hidden_states"].data_ptr() == rows.data_ptr()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({}, "gave no rows of codes"),
        ({"codes": torch.zeros(2, 3)}, "as torch.float32"),
        ({"codes": torch.zeros(2, 4, dtype=torch.int64)}, r"\[2, 4\], and they are due as torch.int64 \[2, 3\]"),
    ],
)
def test_rows_that_are_not_as_they_were_said_to_be_are_refused(rows: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RowLayout([RowKind("codes", torch.int64, (3,))]).pack(rows)


def test_kinds_without_bytes_and_names_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match="the rows of a have no bytes"):
        RowLayout([RowKind("a", torch.int64, (0,))])
    with pytest.raises(ValueError, match="two kinds of rows have the name a"):
        RowLayout([RowKind("a", torch.int64), RowKind("a", torch.bool)])
