"""What is written is read back; what is not a payload is refused by name, before memory is taken for it."""

import gc
import json
import os
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge, StorageUnavailable
from omni_jobs.payloads import (
    FLOAT_DTYPES,
    PAYLOAD_VERSION,
    AdditionalInformationPayload,
    Manifest,
    Payload,
    PromptEmbedsPayload,
    Tensor,
)
from omni_jobs.payloads.wire_limits import MAX_HEADER_BYTES, MAX_RANK, MAX_TENSORS, MAX_VALUES_BYTES

MIB = 1 << 20
MAX_BYTES = 16 * MIB
MANIFEST = Manifest("hidden_states", "job-0198", "thinker", 1)
NUMPY_DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16"] + [
    f"{kind}{bits}" for kind in ("uint", "int", "float") for bits in (32, 64)
]


def payload(tensors: Mapping[str, Any] | None = None, **values: Any) -> Payload:
    return Payload(MANIFEST, None, AdditionalInformationPayload(tensors or {}, values))


def written(sent: Payload) -> bytes:
    return b"".join(sent.buffers())


def hidden_states() -> Payload:
    """A payload as the thinker's, for faults: rows and token ids."""
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    return payload(
        {"hidden_states": Tensor.from_numpy(rows), "token_ids": Tensor.from_numpy(np.arange(3, dtype=np.int64))},
        voice="Chelsie",
    )


def changed(change: Callable[[dict[str, Any]], object], *, sent: Payload | None = None) -> bytes:
    """A file whose header was changed, well-formed otherwise."""
    data = written(sent or hidden_states())
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header = change(header) or header
    return with_header(json.dumps(header), data[end:])


def with_header(header: str | bytes, data: bytes = b"") -> bytes:
    encoded = header.encode() if isinstance(header, str) else header
    encoded = encoded.ljust(-(-len(encoded) // 8) * 8)
    return len(encoded).to_bytes(8, "little") + encoded + data


def refused(data: bytes, max_bytes: int = MAX_BYTES) -> PayloadError:
    with pytest.raises(PayloadError) as raised:
        Payload.decode(data, max_bytes, key="jobs/job-0198/payloads/thinker/1", stage="talker")
    error = raised.value
    assert isinstance(error, PayloadCorrupt | PayloadTooLarge)
    assert error.key == "jobs/job-0198/payloads/thinker/1"
    assert error.stage == "talker"
    assert error.field
    assert not error.retryable
    return error


# Round trips

names = st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z")
arrays = st.sampled_from(NUMPY_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
tensors = arrays.map(Tensor.from_numpy)
entries = tensors | st.lists(tensors, max_size=3) | st.dictionaries(names, tensors, max_size=3)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
embeds = hnp.arrays(
    st.sampled_from(["float16", "float32", "float64"]), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0)
).map(lambda array: PromptEmbedsPayload(Tensor.from_numpy(array)))
payloads = st.builds(
    Payload,
    st.builds(
        Manifest,
        st.sampled_from(["hidden_states", "codes", "bytes"]),
        st.from_regex(r"\Ajob-[0-9a-f]{4}\Z"),
        st.from_regex(r"\A[a-z][a-z0-9_]{0,20}\Z"),
        st.integers(1, 2**31),
        version=st.just(PAYLOAD_VERSION),
    ),
    st.none() | embeds,
    st.none()
    | st.builds(
        AdditionalInformationPayload,
        st.dictionaries(names, entries, max_size=4),
        st.dictionaries(names, json_values, max_size=4),
    ),
)


@settings(max_examples=150, deadline=None)
@given(payloads)
def test_round_trip(sent: Payload) -> None:
    data = written(sent)
    assert len(data) == sent.nbytes
    received = Payload.decode(data, MAX_BYTES)
    assert received == sent
    assert written(received) == data
    # Any reader of safetensors sees the same tensors.
    theirs = safetensors.numpy.load(data)
    ours = dict(sent._in_file_order)
    assert theirs.keys() == ours.keys()
    for name, array in theirs.items():
        assert array.shape == ours[name].shape
        assert array.tobytes() == bytes(ours[name].data)


def test_the_format_in_bytes() -> None:
    sent = payload({"b": Tensor.from_numpy(np.array([1, 2], np.uint8)), "a": [Tensor.from_numpy(np.float32(1.5))]}, n=1)
    data = written(sent)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert data[8:9] == b"{"
    header = json.loads(data[8 : 8 + length])
    assert header == {
        "__metadata__": {
            "omni_jobs.manifest": (
                '{"version":1,"kind":"hidden_states","job_id":"job-0198","stage":"thinker","attempt":1}'
            ),
            "omni_jobs.structure": '{"b":null,"a":1}',
            "omni_jobs.values": '{"n":1}',
        },
        "tensors.a.0": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "tensors.b": {"dtype": "U8", "shape": [2], "data_offsets": [4, 6]},
    }
    assert data[8 + length :] == b"\x00\x00\xc0\x3f\x01\x02"


def test_encoding_copies_no_tensor() -> None:
    array = np.zeros(8 * MIB, np.uint8)
    sent = payload({"big": Tensor.from_numpy(array)})
    tracemalloc.start()
    try:
        _, view = sent.buffers()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    array[5] = 7
    assert view[5] == 7


def test_decoding_copies_no_tensor() -> None:
    data = written(payload({"big": Tensor.from_numpy(np.zeros(8 * MIB, np.uint8))}))
    tracemalloc.start()
    try:
        received = Payload.decode(data, MAX_BYTES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    assert received.additional_information is not None
    assert received.additional_information.tensor("big").data.obj is data


def test_any_script_passes_unharmed() -> None:
    text = '你好, مرحبا, नमस्ते, 🎉👩‍👩‍👧, \x00\x1f\x7f\u2028 "quoted" \\ e\u0301'
    sent = payload(text=text, nested={text: [text]})
    assert Payload.decode(written(sent), MAX_BYTES) == sent


def test_numpy_both_ways() -> None:
    strided = np.arange(24, dtype=np.int32).reshape(4, 6).T[::2]
    assert np.array_equal(Tensor.from_numpy(strided).numpy(), strided)
    swapped = np.array([1.5, -2.0], dtype=">f4")
    assert np.array_equal(Tensor.from_numpy(swapped).numpy(), swapped)
    assert Tensor.from_numpy(swapped).numpy().dtype == np.float32
    scalar = Tensor.from_numpy(np.array(3))
    assert scalar.shape == ()
    assert scalar.numpy() == 3
    assert not scalar.numpy().flags.writeable
    with pytest.raises(PayloadError, match="complex128"):
        Tensor.from_numpy(np.zeros(2, complex))
    with pytest.raises(PayloadError, match="object"):
        Tensor.from_numpy(np.array([{}]))
    with pytest.raises(PayloadError, match="BF16"):
        Tensor("BF16", (1,), memoryview(b"\x00\x00")).numpy()


# Files


def test_a_mapping_lives_as_long_as_a_tensor_of_it(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    sent = payload({"rows": Tensor.from_numpy(np.arange(100_000))})
    assert sent.write(path) == sent.nbytes == path.stat().st_size
    received = Payload.open(path, MAX_BYTES)
    assert received.additional_information is not None
    array = received.additional_information.tensor("rows").numpy()
    path.unlink()
    del received
    gc.collect()
    assert array.sum() == 100_000 * 99_999 // 2


def test_writing_replaces_whole_files_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    hidden_states().write(path)
    before = Payload.open(path, MAX_BYTES)
    payload(n=2).write(path)
    assert before == hidden_states()
    assert Payload.open(path, MAX_BYTES) == payload(n=2)
    assert os.listdir(tmp_path) == ["payload"]


def test_files_that_are_not_there_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    with pytest.raises(StorageUnavailable, match="no such file") as missing:
        Payload.open(path, MAX_BYTES, key="a/key")
    assert missing.value.key == "a/key"
    with pytest.raises(StorageUnavailable):
        hidden_states().write(tmp_path / "no" / "directory")
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: nothing may try to read it
    with pytest.raises(PayloadTooLarge, match="1099511627776 bytes"):
        Payload.open(path, MAX_BYTES)
    path.write_bytes(b"")
    with pytest.raises(PayloadCorrupt, match="0 bytes"):
        Payload.open(path, MAX_BYTES)


# Faults, each named by its field


@pytest.mark.parametrize("kept", [0, 7, 8, 9, 100, -1, -40])
def test_truncated(kept: int) -> None:
    data = written(hidden_states())
    error = refused(data[:kept])
    assert isinstance(error, PayloadCorrupt)
    assert "truncated" in error.message or "not even" in error.message


def test_bytes_after_the_end() -> None:
    assert refused(written(hidden_states()) + b"\x00" * 8).field == "size"


def test_a_foreign_safetensors_file() -> None:
    for metadata in (None, {"format": "pt"}):
        error = refused(safetensors.numpy.save({"weight": np.zeros((2, 2), np.float32)}, metadata))
        assert error.field == "manifest"
        assert "not a payload of omni-jobs" in error.message


@pytest.mark.parametrize("data", [b"\x80\x04\x95" + b"x" * 100, b"PK\x03\x04" + b"x" * 100, b"{}", os.urandom(500)])
def test_other_files(data: bytes) -> None:
    refused(data)


def test_lengths_that_would_take_memory() -> None:
    assert refused((2**63).to_bytes(8, "little") + b"{}").field == "header"
    huge = changed(lambda header: header["tensors.hidden_states"].update(shape=[2**40, 2**40]))
    tracemalloc.start()
    try:
        refused(huge)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "F31"}, "dtype"),
        ({"dtype": "C64"}, "dtype"),
        ({"dtype": "F8_E4M3"}, "dtype"),
        ({"dtype": ["F32"]}, "dtype"),
        ({"dtype": None}, "dtype"),
        ({"dtype": "F16"}, "data_offsets"),
        ({"shape": [3, 5]}, "data_offsets"),
        ({"shape": [3]}, "data_offsets"),
        ({"shape": [-3, -4]}, "shape"),
        ({"shape": [3, 4.0]}, "shape"),
        ({"shape": [12, True]}, "shape"),
        ({"shape": ["3", "4"]}, "shape"),
        ({"shape": [[3], 4]}, "shape"),
        ({"shape": 12}, "shape"),
        ({"shape": {"0": 12}}, "shape"),
        ({"shape": None}, "shape"),
        ({"shape": [1] * 9}, "shape"),
        ({"shape": [0, 2**62, 2**62]}, "shape"),
        ({"shape": [2**32, 2**32, 2**32]}, "shape"),
        ({"data_offsets": [24, 71]}, "data_offsets"),
        ({"data_offsets": [24, 80]}, "data_offsets"),
        ({"data_offsets": [20, 68]}, "data_offsets"),
        ({"data_offsets": [28, 76]}, "data_offsets"),
        ({"data_offsets": [0, 48]}, "data_offsets"),
        ({"data_offsets": [72, 24]}, "data_offsets"),
        ({"data_offsets": [-48, 0]}, "data_offsets"),
        ({"data_offsets": [24.0, 72]}, "data_offsets"),
        ({"data_offsets": [False, 48]}, "data_offsets"),
        ({"data_offsets": [24]}, "data_offsets"),
        ({"data_offsets": [24, 2**63]}, "data_offsets"),
        ({"data_offsets": "24,72"}, "data_offsets"),
    ],
)
def test_a_wrong_tensor(change: dict[str, Any], field: str) -> None:
    error = refused(changed(lambda header: header["tensors.hidden_states"].update(change)))
    assert error.field in (f"tensors.hidden_states.{field}", f"tensors.token_ids.{field}")


@pytest.mark.parametrize("entry", [None, 5, [], {}, {"dtype": "F32", "shape": [0]}, "F32"])
def test_not_a_tensor_at_all(entry: object) -> None:
    error = refused(changed(lambda header: header.update({"tensors.hidden_states": entry})))
    assert error.field == "tensors.hidden_states"


def test_an_unknown_part_of_a_tensor() -> None:
    assert refused(changed(lambda header: header["tensors.token_ids"].update(device="cuda"))).field == (
        "tensors.token_ids"
    )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "weight",
            "tensors.",
            "tensors",
            "tensors..x",
            "tensors.a.b.c",
            "tensors.ä",
            "tensors.a b",
            "",
            "prompt_embeds.0",
        ),
        *("tensors.../../etc", "tensors." + "x" * 65, "\ud800"),
    ],
)
def test_names_that_are_not_a_tensors(name: str) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [72, 72]}
    error = refused(changed(lambda header: header.update({name: empty})))
    assert error.field == "header"
    error.message.encode()


def test_tensors_and_structure_must_agree() -> None:
    def restructured(structure: object) -> bytes:
        return changed(lambda header: header["__metadata__"].update({"omni_jobs.structure": json.dumps(structure)}))

    both = {"hidden_states": None, "token_ids": None}
    assert Payload.decode(restructured(both), MAX_BYTES)
    assert refused(restructured({"hidden_states": None})).field == "tensors.token_ids"
    assert refused(restructured(both | {"more": None})).field == "tensors.more"
    assert refused(restructured(both | {"more": 1})).field == "structure.more"
    assert refused(restructured(both | {"token_ids": 1})).field == "tensors.token_ids.0"
    assert refused(restructured(both | {"token_ids": ["x"]})).field == "tensors.token_ids.x"
    assert refused(restructured(both | {"a": ["x/y"]})).field == "structure.a"
    assert refused(restructured(both | {"a b": None})).field == "structure"
    for nonsense in (True, -1, 2**80, 1.5, "null", {}):
        assert refused(restructured(both | {"more": nonsense})).field == "structure.more"
    assert refused(restructured([])).field == "structure"


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        ({"version": 2}, "manifest.version"),
        ({"version": True}, "manifest.version"),
        ({"version": "1"}, "manifest.version"),
        ({"kind": ""}, "manifest.kind"),
        ({"job_id": 5}, "manifest.job_id"),
        ({"job_id": "job\n1"}, "manifest.job_id"),
        ({"stage": "x" * 200}, "manifest.stage"),
        ({"attempt": -1}, "manifest.attempt"),
        ({"attempt": 0}, "manifest.attempt"),
        ({"attempt": 1.0}, "manifest.attempt"),
        ({"attempt": True}, "manifest.attempt"),
        ({"more": 1}, "manifest"),
    ],
)
def test_a_wrong_manifest(manifest: dict[str, Any], field: str) -> None:
    found = {"version": 1, "kind": "codes", "job_id": "job-1", "stage": "talker", "attempt": 1} | manifest
    text = json.dumps(found)
    error = refused(changed(lambda header: header["__metadata__"].update({"omni_jobs.manifest": text})))
    assert error.field == field


def test_metadata_that_is_not_ours() -> None:
    assert refused(changed(lambda header: header["__metadata__"].update(more="x"))).field == "__metadata__"
    assert refused(changed(lambda header: header["__metadata__"].update({"omni_jobs.values": {}}))).field == "values"
    assert refused(changed(lambda header: header.update(__metadata__=[]))).field == "manifest"
    for part in ("manifest", "structure", "values"):
        for text in ("", "null", "[]", "{", "5", "\ud800", '{"x": NaN}', '{"x": 1, "x": 2}'):
            data = changed(lambda header, p=part, t=text: header["__metadata__"].update({f"omni_jobs.{p}": t}))
            assert (refused(data).field or "").split(".")[0] == part


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "5",
        "null",
        "{",
        b"\xff\xfe{}",
        '{"__metadata__": {}, "__metadata__": {}}',
        '{"x": Infinity}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"x": ' + "9" * 5000 + "}",
    ],
)
def test_headers_that_are_not_json(header: str | bytes) -> None:
    assert refused(with_header(header)).field == "header"


def test_a_name_twice_in_the_header() -> None:
    data = written(hidden_states())
    end = 8 + int.from_bytes(data[:8], "little")
    text = data[8:end].decode().rstrip()
    tensor = ',"tensors.token_ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}}'
    error = refused(with_header(text[:-1] + tensor, data[end:]))
    assert error.field == "header"
    assert "twice" in error.message


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ('{"x": 1e999}', "values.x"),
        ('{"x": ' + str(2**64) + "}", "values.x"),
        ('{"x": "\\ud800"}', "values.x"),
        ('{"x": {"\\udfff": 1}}', "values.x"),
        ('{"x": ' + "[" * 17 + "]" * 17 + "}", "values.x"),
        ('{"x": ' + "[" * 50_000 + "]" * 50_000 + "}", "values"),
        ('{"x y": 1}', "values"),
        ('{"x": "' + "y" * 300_000 + '"}', "values"),
    ],
)
def test_wrong_values(values: str, field: str) -> None:
    error = refused(changed(lambda header: header["__metadata__"].update({"omni_jobs.values": values})))
    assert error.field == field


def test_how_large_a_payload_may_be() -> None:
    data = written(hidden_states())
    assert Payload.decode(data, len(data))
    values = json.dumps({"x": "y" * MAX_VALUES_BYTES})
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [72, 72]}
    more = {f"tensors.more.{number}": empty for number in range(MAX_TENSORS)}
    for large, max_bytes, field in (
        (data, len(data) - 1, "size"),
        (with_header(" " * (MAX_HEADER_BYTES + 1)), MAX_BYTES, "header"),
        (changed(lambda header: header.update(more)), MAX_BYTES, "tensors"),
        (changed(lambda header: header["__metadata__"].update({"omni_jobs.values": values})), MAX_BYTES, "values"),
    ):
        error = refused(large, max_bytes)
        assert isinstance(error, PayloadTooLarge)
        assert error.field == field
    deep = changed(lambda header: header["tensors.hidden_states"].update(shape=[3, 4, *[1] * (MAX_RANK - 1)]))
    assert refused(deep).field == "tensors.hidden_states.shape"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_reader_asks_for_finite_numbers(value: float) -> None:
    rows = np.zeros((3, 4), np.float32)
    rows[2, 1] = value
    sent = Payload(
        MANIFEST,
        PromptEmbedsPayload(Tensor.from_numpy(rows)),
        AdditionalInformationPayload({"spoiled": Tensor.from_numpy(rows), "ids": Tensor.from_numpy(np.arange(3))}),
    )
    received = Payload.decode(written(sent), MAX_BYTES, key="jobs/1", stage="draw")
    assert received.prompt_embeds is not None
    assert received.additional_information is not None
    information = received.additional_information
    assert information.tensor("ids", finite=True).shape == (3,)
    assert information.tensor("spoiled").shape == (3, 4)
    for check, field in (
        (lambda: information.tensor("spoiled", finite=True), "tensors.spoiled"),
        (received.prompt_embeds.check_finite, "prompt_embeds"),
    ):
        with pytest.raises(PayloadCorrupt, match="an element is not finite") as raised:
            check()
        assert (raised.value.field, raised.value.key, raised.value.stage) == (field, "jobs/1", "draw")


def test_a_bool_that_is_neither() -> None:
    sent = payload({"mask": Tensor.from_numpy(np.array([True, False, True]))})
    assert Payload.decode(written(sent), MAX_BYTES) == sent
    assert refused(written(sent)[:-1] + b"\x02").field == "tensors.mask"


def test_prompt_embeds_are_a_float_matrix() -> None:
    for array, field in ((np.zeros((2, 3, 4), np.float32), "shape"), (np.zeros((2, 3), np.int32), "dtype")):
        with pytest.raises(PayloadError) as raised:
            PromptEmbedsPayload(Tensor.from_numpy(array))
        assert raised.value.field == f"prompt_embeds.{field}"
    sent = Payload(MANIFEST, PromptEmbedsPayload(Tensor.from_numpy(np.zeros((2, 3), np.float32))))
    assert refused(changed(lambda h: h["prompt_embeds"].update(shape=[6]), sent=sent)).field == "prompt_embeds.shape"
    assert refused(changed(lambda h: h["prompt_embeds"].update(dtype="I32"), sent=sent)).field == "prompt_embeds.dtype"


def test_what_a_writer_refuses() -> None:
    one = Tensor.from_numpy(np.zeros(1, np.uint8))
    for sent, field in (
        (payload({"a.b": one}), "tensors"),
        (payload({"": one}), "tensors"),
        (payload({"a": {"x.y": one}}), "tensors.a"),
        (payload({"a": [one] * 1025}), "tensors"),
        (payload(x=float("nan")), "values.x"),
        (payload(x=b"bytes"), "values.x"),
        (payload(x={1: 2}), "values.x"),
        (payload(x="\ud800"), "values.x"),
        (payload(x=2**64), "values.x"),
        (payload(x="y" * 300_000), "values"),
        (Payload(replace(MANIFEST, version=2)), "manifest.version"),
        (Payload(replace(MANIFEST, job_id="../up")), "manifest.job_id"),
    ):
        with pytest.raises(PayloadError) as raised:
            sent.buffers()
        assert raised.value.field == field
    for tensor in (
        lambda: Tensor("F32", (2,), memoryview(b"1234567")),
        lambda: Tensor("F33", (1,), memoryview(b"1234")),
        lambda: Tensor("U8", (-1,), memoryview(b"")),
        lambda: Tensor("F32", (2,), memoryview(np.zeros(2, np.float32))),
        lambda: Tensor("U8", (2,), memoryview(b"1234")[::2]),
    ):
        with pytest.raises(PayloadError):
            tensor()


def test_readers_ask_for_what_they_need() -> None:
    data = written(hidden_states())
    found = Payload.decode(data, MAX_BYTES, key="k", stage="talker").additional_information
    assert found is not None
    assert found.tensor("hidden_states", rank=2, dtypes=FLOAT_DTYPES).shape == (3, 4)
    assert found.value("voice", str) == "Chelsie"
    for ask, field in (
        (lambda: found.tensor("mrope_positions"), "tensors.mrope_positions"),
        (lambda: found.tensor("hidden_states", rank=3), "tensors.hidden_states.shape"),
        (lambda: found.tensor("token_ids", dtypes=FLOAT_DTYPES), "tensors.token_ids.dtype"),
        (lambda: found.tensor("token_ids", dtypes=FLOAT_DTYPES, finite=True), "tensors.token_ids.dtype"),
        (lambda: found.value("mrope_delta", int), "values.mrope_delta"),
        (lambda: found.value("voice", int), "values.voice"),
    ):
        with pytest.raises(PayloadCorrupt) as raised:
            ask()
        assert (raised.value.field, raised.value.key, raised.value.stage) == (field, "k", "talker")
    flags = AdditionalInformationPayload({"frames": []}, {"flag": True})
    with pytest.raises(PayloadCorrupt, match="not one tensor"):
        flags.tensor("frames")
    with pytest.raises(PayloadCorrupt, match="bool, not int"):
        flags.value("flag", int)
