"""Damage to payload files: in their bytes, and in what their header says.

``Mutator.damaged(index)`` is the same for the same seed and index, whatever was asked before.
"""

import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from typing import Any, Final

__all__ = ["Mutator"]

_LENGTH: Final = 8
_METADATA: Final = "__metadata__"
_DEEPEST: Final = 20
_TWICE: Final = "\x01twice"  # marks a key that is to stand in the file a second time
_NUMBERS: Final[Sequence[Any]] = [
    *(0, 1, -1, 2, 7, 8, 9, 16, 255, 1024, 1025, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**63), -(2**63) - 1, 10**40, 10**4299, 0.0, -0.0, 1.0, 1.5, 1e308, 5e-324, float("nan"), float("inf")),
]
_TEXTS: Final[Sequence[Any]] = [
    *("", "x", "F32", "BF16", "F8_E4M3", "C64", "BOOL", "I64", "U8", "f32", "tensors", "tensors.x", "prompt_embeds"),
    *("tensors.list.0", "tensors.list.-1", "tensors.x.y.z", "../../etc/passwd", "x" * 65, "é", "\ud800", "\x00", "🎉"),
    *("omni_jobs.manifest", "omni_jobs.structure", "omni_jobs.values", _METADATA, "null", "{}", "[]", "1"),
]
_RAW: Final = [f"\x01raw{text}" for text in ("-0", "-0.0", "01", "+1", "1.", "1E400", "0x10", "1_0", "'x'", "x", "")]
_AS_RAW: Final = re.compile(r'"\\u0001raw(.*?)"')
_ODD: Final[Sequence[Any]] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [0],
    {"": 0},
    [None] * 9,
    [1] * 8,
    *_NUMBERS,
    *_TEXTS,
    *_RAW,
]
_KEYS: Final[Sequence[str]] = [text for text in _TEXTS if isinstance(text, str)] + [
    *("dtype", "shape", "data_offsets", "version", "kind", "job_id", "stage", "attempt", "hidden_states", "codes"),
]
_PIECES: Final[Sequence[bytes]] = [
    *(b"9" * 20, b"9" * 5000, b"-", b"[", b"]}", b"null", b"true", b"NaN", b"-Infinity", b"1e9", b"\\ud800", b'"'),
    *(
        b"\\u0000",
        b"\xff",
        b"\xc3\x28",
        b"\x00" * 8,
        b"\xef\xbb\xbf",
        b",",
        b":",
        b"{",
        b"}",
        b" " * 8,
        b"\t\n",
        b"/**/",
    ),
    *(b'"dtype":"F32",', b'"data_offsets":[0,0],', b'"__metadata__":{},', b"[" * 1200, b'{"a":' * 400, b"\\"),
]


class Mutator:
    """Damages the files it is given. Each damage is drawn from ``seed`` and the index of the input."""

    def __init__(self, files: Sequence[bytes], seed: int) -> None:
        self._files = files
        self._seed = seed
        self._split = [_split(file) for file in files]

    def damaged(self, index: int) -> bytes:
        chance = random.Random(f"{self._seed}:{index}")
        which = chance.randrange(len(self._files))
        draw = chance.random()
        if draw < 0.0005:
            return _vast(chance)
        if draw < 0.02:
            return chance.randbytes(chance.choice([0, 7, 8, 9, 64, 500]))
        if draw < 0.07:
            return self._well_formed(which, chance)
        data = self._files[which]
        structured = draw < 0.7
        if structured:
            data = self._restructured(which, chance)
        if not structured or chance.random() < 0.1:
            data = self._bytes_changed(data, chance)
        return data

    # What the header says

    def _restructured(self, which: int, chance: random.Random) -> bytes:
        text, data = self._split[which]
        header: Any = json.loads(text)
        metadata = header.get(_METADATA, {})
        inner = [name for name in metadata if name.startswith("omni_jobs.") and chance.random() < 0.7]
        for name in inner:  # so that what stands in the metadata's texts is reached as well
            metadata[name] = json.loads(metadata[name])
        for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
            header = self._changed(header, chance)
        metadata = header.get(_METADATA) if isinstance(header, dict) else None
        if isinstance(metadata, dict):
            for name in inner:
                if name in metadata and not isinstance(metadata[name], str):
                    metadata[name] = _dump(metadata[name], chance)
        match chance.randrange(12):
            case 0:
                data = data[: chance.randrange(len(data) + 1)]
            case 1:
                data += bytes(chance.choice([1, 4, 8, 64]))
            case 2:
                data = chance.choice(self._split)[1]
            case 3:
                data = chance.randbytes(len(data))
        return _joined(_dump(header, chance).encode("utf-8", "surrogatepass"), data, chance)

    def _changed(self, header: Any, chance: random.Random) -> Any:
        """One change somewhere in a JSON value."""
        if not isinstance(header, dict | list) or not header or chance.random() < 0.005:
            return _odd(chance)
        holder, key = _place(header, chance)
        value = holder[key]
        match chance.randrange(10):
            case 0 | 1:
                holder[key] = _odd(chance)
            case 2 | 3 if isinstance(value, int) and not isinstance(value, bool):
                holder[key] = value + chance.choice([-8, -4, -2, -1, 1, 2, 4, 8])
            case 4:
                del holder[key]
            case 5:
                _renamed(holder, key, chance)
            case 6:
                _inserted(holder, key, chance)
            case 7:
                other, at = _place(header, chance)
                holder[key], other[at] = other[at], value
            case 8 if isinstance(value, str) and value:
                at = chance.randrange(len(value))
                holder[key] = value[:at] + chance.choice(_TEXTS) + value[at + 1 :]
            case _:
                holder[key] = _wrapped(value, chance)
        return header

    def _well_formed(self, which: int, chance: random.Random) -> bytes:
        """Another file that says as much: the same things in other words, or other numbers."""
        text, data = self._split[which]
        header: dict[str, Any] = json.loads(text)
        match chance.randrange(5):
            case 0:
                data = chance.randbytes(len(data))
            case 1:
                names = list(header)
                chance.shuffle(names)
                header = {name: header[name] for name in names}
            case 2:
                text = json.dumps(header, indent=chance.randrange(3))
                return _joined(text.encode(), data, chance)
            case 3:
                for name, entry in header.items():
                    if name != _METADATA:
                        entry["shape"].insert(chance.randrange(len(entry["shape"]) + 1), 1)
            case 4:
                metadata = header.get(_METADATA, {})
                for name in [name for name in metadata if chance.random() < 0.3]:
                    del metadata[name]
        return _joined(_dump(header, chance).encode(), data, chance)

    # Bytes

    def _bytes_changed(self, file: bytes, chance: random.Random) -> bytes:
        found = bytearray(file)
        for _ in range(chance.choice([1, 1, 2, 4, 8])):
            if not found:
                break
            header = min(len(found), _LENGTH + int.from_bytes(found[:_LENGTH], "little"))
            at = chance.randrange(header if chance.random() < 0.8 else len(found))
            match chance.randrange(8):
                case 0:
                    found[at] ^= 1 << chance.randrange(8)
                case 1:
                    found[at] = chance.choice(b'0123456789-.eE{}[]",:\\ntf\x00\x01\xff')
                case 2:
                    del found[at : at + chance.choice([1, 2, 8, 64])]
                case 3:
                    found[at:at] = chance.choice(_PIECES)
                case 4:
                    found[at : at + 8] = chance.randbytes(8)
                case 5:
                    other = chance.choice(self._files)
                    begin = chance.randrange(len(other))
                    found[at : at + chance.choice([0, 8, 64])] = other[begin : begin + chance.choice([8, 64, 512])]
                case 6:
                    del found[at:]
                case 7:
                    found[:_LENGTH] = chance.choice(
                        [chance.randrange(len(found) + 16), 2**64 - 1, 2**63, 2**31, 1 << 20, (1 << 20) + 8, 0]
                    ).to_bytes(_LENGTH, "little")
        if chance.random() < 0.6 and len(found) >= _LENGTH:  # lets the damage get past the header's length
            length = int.from_bytes(file[:_LENGTH], "little") + len(found) - len(file)
            length = -(-max(length, 0) // 8) * 8
            found[:_LENGTH] = min(length, 2**64 - 1).to_bytes(_LENGTH, "little")
        return bytes(found)


def _split(file: bytes) -> tuple[str, bytes]:
    end = _LENGTH + int.from_bytes(file[:_LENGTH], "little")
    return file[_LENGTH:end].decode(), file[end:]


def _joined(header: bytes, data: bytes, chance: random.Random) -> bytes:
    """A file, most often with the right length and padding."""
    draw = chance.random()
    if draw < 0.95:
        header = header.ljust(-(-len(header) // 8) * 8)
    length = len(header) if draw < 0.98 else max(0, len(header) + chance.choice([-8, -1, 1, 8, 1 << 40]))
    return length.to_bytes(_LENGTH, "little") + header + data


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Somewhere in a list or an object that is not empty: what holds it, and its key or index there."""
    for depth in count():
        key = chance.randrange(len(value)) if isinstance(value, list) else chance.choice(list(value))
        held = value[key]
        if not isinstance(held, dict | list) or not held or depth == _DEEPEST or chance.random() < 0.2:
            break
        value = held
    return value, key


def _odd(chance: random.Random) -> Any:
    return deepcopy(chance.choice(_ODD))


def _renamed(holder: Any, key: Any, chance: random.Random) -> None:
    if isinstance(holder, dict):
        holder[chance.choice(_KEYS)] = holder.pop(key)
    else:
        chance.shuffle(holder)


def _inserted(holder: Any, key: Any, chance: random.Random) -> None:
    value = holder[key] if chance.random() < 0.5 else _odd(chance)
    if isinstance(holder, list):
        holder.insert(key, value)
    elif chance.random() < 0.5:
        holder[f"{key}{_TWICE}"] = value
    else:
        holder[chance.choice(_KEYS)] = value


def _wrapped(value: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice([1, 1, 2, 17, 100, 400])):
        value = [value] if chance.random() < 0.5 else {"x": value}
    return value


def _dump(value: Any, chance: random.Random) -> str:
    try:
        text = json.dumps(value, ensure_ascii=chance.random() < 0.3, separators=(",", ":"))
    except (ValueError, RecursionError):  # it was put inside itself, or too deeply
        return "{}"
    return _AS_RAW.sub(r"\1", text.replace("\\u0001twice", ""))


def _vast(chance: random.Random) -> bytes:
    """A header up to and over the limit of 1 MiB, of what takes most memory or time to parse."""
    begin, piece, end = chance.choice(_VAST)
    size = chance.choice([1 << 14, 1 << 17, (1 << 20) - 64, (1 << 20) + 64])
    header = begin + piece * (size // len(piece)) + end
    header = header.ljust(-(-len(header) // 8) * 8)
    return len(header).to_bytes(_LENGTH, "little") + header + bytes(chance.choice([0, 48]))


_MANIFEST_ONLY: Final = (
    b'{"__metadata__":{"omni_jobs.manifest":"{\\"version\\":1,\\"kind\\":\\"k\\",\\"job_id\\":\\"j\\",'
    b'\\"stage\\":\\"s\\",\\"attempt\\":1}"'
)
_VAST: Final[Sequence[tuple[bytes, bytes, bytes]]] = [
    (b"{", b" ", b"}"),
    (b'{"x":[', b"[],", b"0]}"),
    (b'{"x":[', b"{},", b"0]}"),
    (b'{"x":[', b'{"":0},', b"0]}"),
    (b'{"x":[', b'{"a":{}},', b"0]}"),
    (b'{"x":[', b"1e1,", b"0]}"),
    (b'{"x":[', b"1234567,", b"0]}"),
    (b'{"x":[', b'"\\u4f60\\ud83c\\udf89",', b"0]}"),
    (b'{"x":', b"9", b"}"),
    (b'{"x":', b"[", b"}"),
    (b'{"x":', b'{"x":', b"}"),
    (b"{", b'"":0,', b'"":0}'),
    (b'{"prompt_embeds":{"dtype":"F32","data_offsets":[0,48],"shape":[', b"1,", b"12]}}"),
    (b'{"prompt_embeds":{"dtype":"F32","shape":[12],"data_offsets":[', b"0,", b"48]}}"),
    (_MANIFEST_ONLY + b',"omni_jobs.values":"{\\"x\\":[', b"[],", b'0]}"}}'),
    (_MANIFEST_ONLY + b',"omni_jobs.values":"{\\"x\\":[', b'{\\"\\":0},', b'0]}"}}'),
    (_MANIFEST_ONLY + b',"omni_jobs.structure":"{\\"x\\":[', b'\\"a\\",', b'\\"b\\"]}"}}'),
    (_MANIFEST_ONLY + b',"omni_jobs.manifest2":"', b"\xf0\x9f\x8e\x89", b'"}}'),
]
