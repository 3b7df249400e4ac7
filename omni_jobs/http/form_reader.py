"""``read_form`` reads a body of ``multipart/form-data`` whose parts are fields of text and files."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.body_reader import check_content_type, chunks_of
from omni_jobs.http.multipart import open_parts


@dataclass(frozen=True, slots=True)
class Form:
    """A form as it was sent. A name that ends in ``[]`` stands here without that: clients write lists so.

    texts  the fields of text by name, in their order
    files  the files by name, in their order: read-only bytes, of a large file a mapping. A field of a page in which
           no file was chosen is none: browsers send it without a file name and without bytes
    """

    texts: Mapping[str, list[str]]
    files: Mapping[str, list[memoryview]]

    @property
    def text_bytes(self) -> bytes:
        """The fields of text as bytes, which say how much there is to parse."""
        return b"".join(text.encode() for texts in self.texts.values() for text in texts)

    @property
    def file_bytes(self) -> int:
        """The bytes of all files together."""
        return sum(len(file) for files in self.files.values() for file in files)

    def only_text(self, name: str) -> str | None:
        """Return the one field of this name; None if it was not sent. Raises InvalidRequest if it came twice."""
        texts = self.texts.get(name, [])
        if len(texts) > 1:
            raise InvalidRequest("this part is given twice", field=name)
        return texts[0] if texts else None


async def read_form(
    request: Request, max_bytes: int, *, max_files: int, max_texts: int = 64, max_text_bytes: int = 1 << 20
) -> Form:
    """Read a body of ``multipart/form-data``.

    Raises UnsupportedContentType, and RequestTooLarge without reading on; InvalidRequest naming ``body`` for what is no
    such form, or has more than ``max_files`` files or ``max_texts`` fields, each of ``max_text_bytes`` at most; and
    naming a field whose text is not UTF-8 or holds NUL; and what ``Body.receive`` raises.
    """
    check_content_type(request, "multipart/form-data")
    texts: dict[str, list[str]] = {}
    files: dict[str, list[memoryview]] = {}
    limits = {"max_files": max_files, "max_texts": max_texts, "max_text_bytes": max_text_bytes}
    async with open_parts(request.headers["content-type"], chunks_of(request, max_bytes), **limits) as parts:
        for part in parts:
            name = part.name.removesuffix("[]")
            if part.is_unchosen:
                continue
            if part.is_file:
                files.setdefault(name, []).append(await part.map())
            else:
                texts.setdefault(name, []).append(_text(name, await part.read()))
    return Form(texts, files)


def _text(name: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: {error.reason} at byte {error.start}", field=f"{name:.64}") from None
    if "\0" in text:
        raise InvalidRequest("must not contain NUL", field=f"{name:.64}")
    return text
