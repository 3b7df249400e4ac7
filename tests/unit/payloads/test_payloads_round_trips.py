"""Whatever an array looks like in memory, it comes back equal; sizes beyond memory are told by headers alone."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads import (
    AdditionalInformationPayload,
    Manifest,
    Payload,
    PromptEmbedsPayload,
    Tensor,
)

GIB = 1 << 30
MAX_BYTES = 16 << 20
MANIFEST = Manifest("hidden_states", "job-0198", "thinker", 1)
NAMES = ["bool", "float16", "float32", "float64"] + [
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
]
WIDE = {"F32": 4, "F64": 8, "BF16": 2, "U8": 1}


def round_trip(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sent = Payload(MANIFEST, None, AdditionalInformationPayload({"x": Tensor.from_numpy(array)}))
    received = Payload.decode(b"".join(sent.buffers()), MAX_BYTES).additional_information
    assert received is not None
    return received.tensor("x").numpy()


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Bit for bit: NaN, -0.0 and what lies in them included."""
    return one.shape == other.shape and one.tobytes() == other.astype(one.dtype).tobytes()


# How an array lies in memory


@st.composite
def views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """An array of any dtype and byte order, cut, reversed, transposed, broadcast, in Fortran's order."""
    name = draw(st.sampled_from(NAMES))
    dtype = np.dtype(name).newbyteorder(draw(st.sampled_from("<>=")))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6))
    array = np.frombuffer(
        draw(st.binary(min_size=(size := int(np.prod(shape)) * dtype.itemsize), max_size=size)), dtype
    ).reshape(shape)
    if name == "bool":
        array = (array.view(np.uint8) & 1).view(np.bool_)
    if array.ndim:
        array = array[draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))]
        array = np.asarray(array, dtype=dtype)
    if array.ndim > 1:
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    match draw(st.sampled_from(["as it is", "fortran", "backwards", "broadcast"])):
        case "fortran":
            array = np.asfortranarray(array) if array.ndim else array
        case "backwards":
            array = array[(slice(None, None, -1),) * array.ndim]
        case "broadcast" if array.ndim < 7:
            array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(views())
def test_views(array: np.ndarray[Any, Any]) -> None:
    if array.ndim > 8:
        with pytest.raises(PayloadError, match="rank"):
            Tensor.from_numpy(array)
        return
    received = round_trip(array)
    assert received.dtype == array.dtype.newbyteorder("=")
    assert same(received, array)


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_of_every_dtype(name: str) -> None:
    dtype = np.dtype(name)
    data = bytes([0, 1]) * 8 if name == "bool" else bytes(range(256)) * 2 + b"\xff" * 8 + bytes(8)
    array = np.frombuffer(data, dtype)
    for view in (
        array,
        array[::-1],
        array[1::3],
        array.reshape(2, -1).T,
        array.astype(dtype.newbyteorder(">")),
        array[:0],
    ):
        assert same(round_trip(view), view)


def test_bytes_at_any_address() -> None:
    data = bytes(range(64))
    for offset in range(1, 8):
        array = np.frombuffer(data, "<f8", count=4, offset=offset)
        assert same(round_trip(array), array)
    sent = Payload(MANIFEST, PromptEmbedsPayload(Tensor.from_numpy(np.arange(6.0).reshape(2, 3))))
    shifted = memoryview(b"\x00" + b"".join(sent.buffers()))[1:]
    assert Payload.decode(shifted, MAX_BYTES) == sent


def test_structures_of_many_tensors() -> None:
    rows = [Tensor.from_numpy(np.full(index % 5, index, np.int16)) for index in range(1000)]
    for tensors in ({"list": rows}, {f"t{index}": row for index, row in enumerate(rows)}):
        sent = Payload(MANIFEST, None, AdditionalInformationPayload(tensors))
        assert Payload.decode(b"".join(sent.buffers()), MAX_BYTES) == sent
    members = {f"m{index}": row for index, row in enumerate(rows[:500])}
    both = Payload(MANIFEST, None, AdditionalInformationPayload({"dict": members, "list": rows[:500], "empty": {}}))
    assert Payload.decode(b"".join(both.buffers()), MAX_BYTES) == both


# Sizes beyond memory: a sparse file has a length and no bytes; a tensor's view repeats one byte


def sparse(path: Path, tensors: dict[str, tuple[str, list[int]]], *, missing: int = 0) -> Path:
    """A file of zeros with such tensors, written as a hole."""
    structure = json.dumps(dict.fromkeys(tensors))
    header: dict[str, Any] = {"__metadata__": {"omni_jobs.manifest": manifest(), "omni_jobs.structure": structure}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=object)) * WIDE[dtype]
        header[f"tensors.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    encoded = json.dumps(header).encode()
    encoded = encoded.ljust(-(-len(encoded) // 8) * 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end - missing)
    return path


def manifest() -> str:
    return json.dumps({"version": 1, "kind": "bytes", "job_id": "job-1", "stage": "first", "attempt": 1})


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("U8", [4 * GIB - 1]),
        ("U8", [4 * GIB]),
        ("U8", [4 * GIB + 1]),
        ("BF16", [2 * GIB - 1]),
        ("BF16", [1 << 16, 1 << 15]),
        ("F32", [GIB + 1]),
        ("F64", [1 << 20, 1 << 10]),
        ("F32", [1 << 12, 1 << 14, 1 << 12]),  # a tebibyte: more than any memory here
    ],
    ids=str,
)
def test_around_4_gib(dtype: str, shape: list[int], tmp_path: Path) -> None:
    max_bytes = 1 << 41
    size = int(np.prod(shape, dtype=object)) * WIDE[dtype]
    path = sparse(tmp_path / "payload", {"a": (dtype, shape), "z": ("U8", [3])})
    tracemalloc.start()
    try:
        received = Payload.open(path, max_bytes).additional_information
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert received is not None
    assert received.tensor("a").nbytes == size
    assert received.tensor("a").data[size - 1] == 0
    assert received.tensor("z").shape == (3,)
    with safetensors.safe_open(path, framework="numpy") as theirs:
        assert theirs.get_slice("tensors.a").get_shape() == shape
    with pytest.raises(PayloadTooLarge):
        Payload.open(path, size)
    for missing in (1, 4 * GIB):
        if missing < size:
            with pytest.raises(PayloadCorrupt, match="truncated"):
                Payload.open(sparse(tmp_path / "short", {"a": (dtype, shape)}, missing=missing), max_bytes)


@pytest.mark.parametrize("wrapped", [2**32, 2**33, 2**62, 2**63 - 1])
def test_offsets_that_would_wrap(wrapped: int, tmp_path: Path) -> None:
    """A tensor whose size is right modulo 2^32 only is not there."""
    for shape, end in (([16 + wrapped], 16), ([16], 16 + wrapped), ([16 + wrapped], 16 + wrapped)):
        header = {
            "__metadata__": {"omni_jobs.manifest": manifest(), "omni_jobs.structure": '{"a":null}'},
            "tensors.a": {"dtype": "U8", "shape": shape, "data_offsets": [0, end]},
        }
        encoded = json.dumps(header).encode()
        encoded = encoded.ljust(-(-len(encoded) // 8) * 8)
        with pytest.raises(PayloadCorrupt):
            Payload.decode(len(encoded).to_bytes(8, "little") + encoded + bytes(16), MAX_BYTES)


@pytest.mark.parametrize("size", [4 * GIB - 1, 4 * GIB, 4 * GIB + 1, 1 << 40])
def test_a_header_for_more_than_there_is_memory_for(size: int, tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(size)
    zeros = np.memmap(path, np.uint8, "r")
    sent = Payload(MANIFEST, None, AdditionalInformationPayload({"rows": Tensor.from_numpy(zeros)}))
    header, rows = sent.buffers()
    assert sent.nbytes == header.nbytes + size
    assert rows.nbytes == size
    written = json.loads(bytes(header[8:]))
    assert written["tensors.rows"] == {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
