"""Parts of a multipart body: large files are mapped, and nothing of them is copied or encoded."""

import asyncio
import mmap
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.multipart import FormPart, open_parts

CONTENT_TYPE = "multipart/form-data; boundary=x"
MIB = 1 << 20


def body_of(*parts: tuple[str, bytes, bool]) -> bytes:
    body = b""
    for name, content, is_file in parts:
        file = '; filename="../a"' if is_file else ""
        body += f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--x--\r\n"


async def pieces(body: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(body), 65_536):
        yield body[at : at + 65_536]


async def mapped(body: bytes, *, max_text_bytes: int = MIB) -> list[tuple[str, memoryview]]:
    limits = {"max_files": 4, "max_texts": 4, "max_text_bytes": max_text_bytes}
    async with open_parts(CONTENT_TYPE, pieces(body), **limits) as parts:
        return [(part.name, await part.map()) for part in parts]


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB + 3])
def test_a_file_is_what_came_and_a_large_one_is_mapped(size: int) -> None:
    content = os.urandom(size)
    [(name, data), (other, text)] = asyncio.run(
        mapped(body_of(("sound", content, True), ("prompt", "é".encode(), False)))
    )
    assert (name, data == content, other, bytes(text)) == ("sound", True, "prompt", "é".encode())
    assert isinstance(data.obj, mmap.mmap) == (size > MIB)
    assert data.readonly


def test_a_part_can_be_read_and_mapped() -> None:
    content = os.urandom(2 * MIB)

    async def both() -> tuple[bytes, memoryview]:
        limits = {"max_files": 1, "max_texts": 0, "max_text_bytes": 1}
        async with open_parts(CONTENT_TYPE, pieces(body_of(("a", content, True))), **limits) as [part]:
            assert isinstance(part, FormPart)
            return await part.read(), await part.map()

    read, data = asyncio.run(both())
    assert read == content
    assert data == content


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its descriptor, once nobody uses the mapping."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    found = asyncio.run(mapped(body_of(("a", os.urandom(3 * MIB), True), ("b", os.urandom(3 * MIB), True))))
    with pytest.raises(InvalidRequest, match="cut off"):
        asyncio.run(mapped(body_of(("a", os.urandom(3 * MIB), True))[:-6]))
    assert list(tmp_path.iterdir()) == []
    assert [len(data) for _, data in found] == [3 * MIB] * 2
    del found
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_text_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="exceeded maximum size") as raised:
        asyncio.run(mapped(body_of(("prompt", b"x" * 2049, False)), max_text_bytes=2048))
    assert raised.value.field == "body"
