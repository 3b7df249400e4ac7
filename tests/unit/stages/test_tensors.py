"""Torch tensors share their memory with payloads, both ways."""

import gc
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.errors import PayloadError
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from workers.stages.tensors import from_torch, to_torch

MAX_BYTES = 1 << 24
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float16, torch.bfloat16] + [
    getattr(torch, f"{kind}{bits}") for kind in ("uint", "int") for bits in (16, 32, 64)
]


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_every_dtype_both_ways(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = sample(dtype, *shape)
    sent = Payload(
        Manifest("bytes", "job-1", "first", 1), None, AdditionalInformationPayload({"x": from_torch(tensor)})
    )
    sent.write(tmp_path / "payload")
    received = Payload.open(tmp_path / "payload", MAX_BYTES)
    assert received.additional_information is not None
    again = to_torch(received.additional_information.tensor("x"))
    assert again.dtype == dtype
    assert again.shape == tensor.shape
    assert torch.equal(again, tensor)
    theirs = safetensors.torch.load_file(tmp_path / "payload")["tensors.x"]
    assert theirs.dtype == dtype
    assert torch.equal(theirs, tensor)


def test_memory_is_shared_both_ways() -> None:
    tensor = torch.arange(10, dtype=torch.bfloat16)
    wire = from_torch(tensor)
    again = to_torch(wire)
    assert again.data_ptr() == tensor.data_ptr()
    assert wire.data.readonly


def test_the_bytes_live_as_long_as_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    rows = from_torch(torch.arange(200_000))
    Payload(Manifest("bytes", "job-1", "first", 1), None, AdditionalInformationPayload({"rows": rows})).write(path)

    def load() -> torch.Tensor:
        found = Payload.open(path, MAX_BYTES).additional_information
        assert found is not None
        return to_torch(found.tensor("rows"))

    tensor = load()
    part = tensor[5:10].view(5)
    path.unlink()
    del tensor
    gc.collect()
    assert part.tolist() == [5, 6, 7, 8, 9]


def test_a_change_in_place_stays_ours(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    zeros = from_torch(torch.zeros(4096))
    Payload(Manifest("bytes", "job-1", "first", 1), None, AdditionalInformationPayload({"x": zeros})).write(path)
    found = Payload.open(path, MAX_BYTES).additional_information
    assert found is not None
    to_torch(found.tensor("x")).add_(1)
    fresh = Payload.open(path, MAX_BYTES).additional_information
    assert fresh is not None
    assert to_torch(fresh.tensor("x")).sum() == 0


def test_views_that_are_not_contiguous_are_copied() -> None:
    tensor = torch.arange(24).reshape(4, 6)
    for view in (tensor.T, tensor[:, ::2], tensor[1:, 3:], tensor[:1].expand(3, 6)):
        assert torch.equal(to_torch(from_torch(view)), view)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype and any bits, cut, transposed, stepped through, expanded."""
    dtype = draw(st.sampled_from([*DTYPES, torch.float32, torch.float64]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = math.prod(shape)
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    flat = torch.tensor(list(data), dtype=torch.uint8)
    tensor = (flat % 2 == 1 if dtype == torch.bool else flat.view(dtype)).reshape(shape)
    for dim in range(tensor.dim()):
        tensor = tensor.transpose(dim, draw(st.integers(0, tensor.dim() - 1)))
        start = draw(st.integers(0, tensor.shape[dim]))
        step = (slice(None),) * dim + (slice(start, None, draw(st.integers(1, 3))),)
        tensor = tensor[step]
    return tensor.expand(draw(st.integers(0, 3)), *tensor.shape) if draw(st.booleans()) else tensor


@settings(max_examples=100, deadline=None)
@given(views())
def test_any_view_comes_back_bit_for_bit(tensor: torch.Tensor) -> None:
    sent = Payload(
        Manifest("bytes", "job-1", "first", 1), None, AdditionalInformationPayload({"x": from_torch(tensor)})
    )
    received = Payload.decode(b"".join(sent.buffers()), MAX_BYTES).additional_information
    assert received is not None
    again = to_torch(received.tensor("x"))
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    as_bytes = tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)  # NaN and all
    assert torch.equal(again.reshape(-1).view(torch.uint8), as_bytes)


def test_one_element_of_a_larger_tensor() -> None:
    codes = torch.arange(10)
    for view in (codes[3:4:2], codes[::20], codes[:1].expand(1, 1), codes[2:].unfold(0, 1, 5)[:1], codes[5:5:3]):
        assert torch.equal(to_torch(from_torch(view)), view)


def test_gradients_stay_behind() -> None:
    assert not to_torch(from_torch(torch.ones(3, requires_grad=True) * 2)).requires_grad


def test_bytes_that_are_not_aligned() -> None:
    data = memoryview(b"\x00" + bytes(torch.arange(4).numpy()))[1:]
    assert to_torch(Tensor("I64", (4,), data)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(PayloadError, match="cannot be in a payload"):
        from_torch(torch.empty(2, dtype=dtype))
