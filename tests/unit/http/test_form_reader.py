"""``read_form``: fields and files by name, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from omni_jobs.errors import InvalidRequest, RequestTooLarge, UnsupportedContentType
from omni_jobs.http.form_reader import Form, read_form

BOUNDARY = "b-0"


def part(name: str, content: bytes, file_name: str | None = None) -> bytes:
    file = "" if file_name is None else f'; filename="{file_name}"'
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"


async def read(*parts: bytes, content_type: str = f"multipart/form-data; boundary={BOUNDARY}", **limits: Any) -> Form:
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    scope = {
        "type": "http",
        "headers": [(b"content-type", content_type.encode())],
        "state": {"body": SimpleNamespace(content_length=len(body))},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await read_form(Request(scope, receive), **{"max_bytes": 1 << 20, "max_files": 2, **limits})


async def test_fields_and_files_stand_by_name_in_their_order() -> None:
    form = await read(
        part("prompt", "Grüße, 漢字 😀".encode()),
        part("image[]", b"one", "a.png"),
        part("seed", b"5"),
        part("image[]", b"two", "../../b.png"),
    )
    assert form.texts == {"prompt": ["Grüße, 漢字 😀"], "seed": ["5"]}
    assert {name: [bytes(file) for file in files] for name, files in form.files.items()} == {"image": [b"one", b"two"]}
    assert (form.only_text("seed"), form.only_text("size")) == ("5", None)
    assert form.text_bytes == "Grüße, 漢字 😀5".encode()


async def test_a_large_file_is_mapped() -> None:
    data = bytes(range(256)) * 8192
    form = await read(part("file", data, "long.wav"), max_bytes=4 << 20)
    assert bytes(form.files["file"][0]) == data


async def test_a_field_that_came_twice_is_refused_where_one_is_wanted() -> None:
    form = await read(part("seed", b"5"), part("seed", b"6"))
    with pytest.raises(InvalidRequest) as refused:
        form.only_text("seed")
    assert refused.value.field == "seed"


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ([part("prompt", b"\xff\xfe")], "prompt"),
        ([part("prompt", b"a\0b")], "prompt"),
        ([part("a", b"", "a"), part("b", b"", "b"), part("c", b"", "c")], "body"),
        ([part(f"f{number}", b"") for number in range(65)], "body"),
    ],
)
async def test_what_is_refused_is_named(parts: list[bytes], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await read(*parts)
    assert refused.value.field == field


async def test_other_bodies_and_too_large_ones_are_refused() -> None:
    with pytest.raises(UnsupportedContentType):
        await read(content_type="application/json")
    with pytest.raises(RequestTooLarge):
        await read(part("file", bytes(2000), "a"), max_bytes=1000)
