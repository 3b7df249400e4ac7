"""A client's prompt embeddings: any safetensors file of one float matrix, and nothing else, is taken."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads import Manifest, Payload, PromptEmbedsPayload, Tensor
from workers.stages.tensors import from_torch

MAX_BYTES = 1 << 24
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
ENTRY = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}


def with_header(header: object, data: bytes = ROWS.tobytes()) -> bytes:
    encoded = json.dumps(header).encode()
    encoded = encoded.ljust(-(-len(encoded) // 8) * 8)
    return len(encoded).to_bytes(8, "little") + encoded + data


def refused(data: bytes, max_bytes: int = MAX_BYTES) -> PayloadError:
    with pytest.raises(PayloadError) as raised:
        PromptEmbedsPayload.decode(data, max_bytes, key="uploads/1")
    assert isinstance(raised.value, PayloadCorrupt | PayloadTooLarge)
    assert raised.value.key == "uploads/1"
    return raised.value


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"who": "谁", "": ""}], ids=str)
def test_what_safetensors_writes_is_read(dtype: str, metadata: dict[str, str] | None, tmp_path: Path) -> None:
    rows = ROWS.astype(dtype)
    safetensors.numpy.save_file({"prompt_embeds": rows}, tmp_path / "embeds", metadata)
    received = PromptEmbedsPayload.decode((tmp_path / "embeds").read_bytes(), MAX_BYTES)
    assert np.array_equal(received.embeds.numpy(), rows)
    assert received.embeds.numpy().dtype == rows.dtype


def test_what_torch_writes_is_read() -> None:
    rows = torch.arange(12).reshape(3, 4).to(torch.bfloat16)
    received = PromptEmbedsPayload.decode(safetensors.torch.save({"prompt_embeds": rows}), MAX_BYTES)
    assert (received.embeds.dtype, received.embeds.shape) == ("BF16", (3, 4))
    assert bytes(received.embeds.data) == rows.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("array", [ROWS, ROWS.T[::-1], ROWS[:0], ROWS.astype(">f8"), ROWS[:, ::2]])
def test_what_is_encoded_is_what_safetensors_writes(array: np.ndarray[Any, Any]) -> None:
    encoded = PromptEmbedsPayload(Tensor.from_numpy(array)).encode()
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    assert encoded == safetensors.numpy.save({"prompt_embeds": plain})
    assert np.array_equal(PromptEmbedsPayload.decode(encoded, MAX_BYTES).embeds.numpy(), array)


def test_decoding_copies_nothing() -> None:
    encoded = PromptEmbedsPayload(Tensor.from_numpy(np.zeros((1 << 10, 1 << 11), np.float32))).encode()
    tracemalloc.start()
    try:
        received = PromptEmbedsPayload.decode(encoded, MAX_BYTES)
        received.check_finite()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert received.embeds.data.obj is encoded


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({}, "prompt_embeds"),
        ({"__metadata__": {"format": "pt"}}, "prompt_embeds"),
        ({"prompt_embeds": ENTRY, "__metadata__": []}, "prompt_embeds.__metadata__"),
        ({"prompt_embeds": ENTRY, "__metadata__": None}, "prompt_embeds.__metadata__"),
        ({"prompt_embeds": ENTRY, "__metadata__": {"format": 5}}, "prompt_embeds.__metadata__"),
        ({"prompt_embeds": ENTRY, "__metadata__": {"\ud800": ""}}, "prompt_embeds.__metadata__"),
        ({"embeds": ENTRY}, "prompt_embeds"),
        ({"prompt_embeds": ENTRY, "lm_head": ENTRY}, "prompt_embeds.header"),
        ({"tensors.rows": ENTRY}, "prompt_embeds"),
        ([], "prompt_embeds.header"),
        ({"prompt_embeds": 5}, "prompt_embeds"),
        ({"prompt_embeds": {**ENTRY, "shape": [12]}}, "prompt_embeds.shape"),
        ({"prompt_embeds": {**ENTRY, "shape": [1, 3, 4]}}, "prompt_embeds.shape"),
        ({"prompt_embeds": {**ENTRY, "shape": [2**40, 2**40]}}, "prompt_embeds.shape"),
        ({"prompt_embeds": {**ENTRY, "dtype": "I32"}}, "prompt_embeds.dtype"),
        ({"prompt_embeds": {**ENTRY, "dtype": "F8_E4M3"}}, "prompt_embeds.dtype"),
        ({"prompt_embeds": {**ENTRY, "shape": [3, 5]}}, "prompt_embeds.data_offsets"),
        ({"prompt_embeds": {**ENTRY, "data_offsets": [8, 56]}}, "prompt_embeds.data_offsets"),
        ({"prompt_embeds": {**ENTRY, "shape": [3, 5], "data_offsets": [0, 60]}}, "prompt_embeds.data_offsets"),
        ({"prompt_embeds": {**ENTRY, "shape": [2, 4], "data_offsets": [0, 32]}}, "prompt_embeds.size"),
    ],
)
def test_other_files_are_refused_by_field(header: object, field: str) -> None:
    assert refused(with_header(header)).field == field


@pytest.mark.parametrize(
    "data", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", b"PK\x03\x04" + b"x" * 99, b"\x80" * 99]
)
def test_files_that_are_not_safetensors(data: bytes) -> None:
    assert refused(data).field == "prompt_embeds.header"


def test_limits() -> None:
    data = with_header({"prompt_embeds": ENTRY})
    assert PromptEmbedsPayload.decode(data, len(data))
    error = refused(data, len(data) - 1)
    assert isinstance(error, PayloadTooLarge)
    assert error.field == "prompt_embeds.size"
    error = refused((1 << 40).to_bytes(8, "little") + data)
    assert isinstance(error, PayloadTooLarge)
    assert error.field == "prompt_embeds.header"


def test_a_payload_with_embeddings_alone_is_such_a_file() -> None:
    sent = PromptEmbedsPayload(Tensor.from_numpy(ROWS))
    data = b"".join(Payload(Manifest("embeds", "job-1", "first", 1), sent).buffers())
    assert PromptEmbedsPayload.decode(data, MAX_BYTES) == sent


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 70_000, -1])
def test_one_number_that_is_not_finite(dtype: torch.dtype, value: float, at: int) -> None:
    rows = torch.full((300, 500), torch.finfo(dtype).max, dtype=dtype)
    embeds = PromptEmbedsPayload(from_torch(rows), key="uploads/1")  # shares the memory
    embeds.check_finite()
    rows.view(-1)[at] = value
    with pytest.raises(PayloadCorrupt, match="not finite") as raised:
        embeds.check_finite()
    assert (raised.value.field, raised.value.key) == ("prompt_embeds", "uploads/1")


def test_only_floats_can_be_other_than_finite() -> None:
    for array in (np.zeros(0, np.float32), np.arange(3), np.array([True])):
        assert Tensor.from_numpy(array).is_finite()
