"""``open_parts``: reads a body of ``multipart/form-data``. A large file in it is kept as a file, and mapped.

Starlette's parser writes a file above 1 MiB to a temporary one without a name, while the body comes in. What is made of
it maps that file: decoders and the object store get its bytes from there. They are never joined in memory, nor encoded
in base64, and the file is gone with the last use of the mapping.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from omni_jobs.errors import InvalidRequest
from omni_jobs.files import map_file

CHARSET: Final = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)"?', re.IGNORECASE)
"""The parameter of a content type that names how text is encoded."""


@dataclass(frozen=True, slots=True)
class FormPart:
    """A part of a multipart body, as long as its ``open_parts`` is open.

    Its file name is dropped, because it says nothing of the bytes, and may say anything.

    name  which part it is: any text of the client, to be shown cut
    """

    name: str
    _content: UploadFile | bytes

    @property
    def is_file(self) -> bool:
        """Whether the part was sent as a file, under a file name."""
        return not isinstance(self._content, bytes)

    @property
    def is_unchosen(self) -> bool:
        """Whether the part is a page's field for files in which none was chosen."""
        return not isinstance(self._content, bytes) and not self._content.filename and not self._content.size

    async def read(self) -> bytes:
        """Return the bytes, in memory: for a part that is parsed."""
        return self._content if isinstance(self._content, bytes) else await self._content.read()

    async def map(self) -> memoryview:
        """Return the bytes, read-only: of a large file a mapping, which outlives ``open_parts``."""
        size = 0 if isinstance(self._content, bytes) else self._content.size or 0
        if isinstance(self._content, bytes) or size <= MultiPartParser.spool_max_size:  # it is in memory
            return memoryview(await self.read())
        return map_file(self._content.file.fileno(), size)


@asynccontextmanager
async def open_parts(
    content_type: str, chunks: AsyncGenerator[bytes], *, max_files: int, max_texts: int, max_text_bytes: int
) -> AsyncGenerator[list[FormPart]]:
    """Context manager: read a body whole, and give the block its parts, in their order.

    ``content_type``: the header, which has the boundary. ``chunks``: the body, whose bytes the caller bounds. Raises
    what the chunks raise, and InvalidRequest, naming ``body``, for what is no multipart body, one that is cut off, more
    than ``max_files`` files or ``max_texts`` other parts, and another part of more than ``max_text_bytes``.
    """
    limits = {"max_files": max_files, "max_fields": max_texts, "max_part_size": max_text_bytes}
    try:
        form = await _Parser(_as_bytes(content_type), chunks, **limits).parse()
    except (MultiPartException, KeyError) as error:  # KeyError: no boundary
        why = error.__cause__ or getattr(error, "message", error)
        raise InvalidRequest(f"not a multipart body: {why}", field="body") from None
    try:
        yield [_part(name, value) for name, value in form.multi_items()]
    finally:
        await form.close()


class _Parser(MultiPartParser):
    """Starlette's parser, which raises InvalidRequest for a body that is cut off; else it leaves out its last part."""

    def __init__(self, headers: Headers, chunks: AsyncGenerator[bytes], **limits: int) -> None:
        super().__init__(headers, self._whole(chunks), **limits)
        self._has_ended = False

    def on_end(self) -> None:
        self._has_ended = True

    async def _whole(self, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        async for chunk in chunks:
            yield chunk
        if not self._has_ended:
            raise InvalidRequest("the multipart body is cut off before its last boundary", field="body")


def _as_bytes(content_type: str) -> Headers:
    """Return the headers with which Starlette reads a part of text as its bytes, one by one, as Latin-1.

    It would else read a part that is not UTF-8 so, and nobody would know it from one that is.
    """
    return Headers({"content-type": CHARSET.sub("", content_type) + "; charset=latin-1"})


def _part(name_as_bytes: str, value: UploadFile | str) -> FormPart:
    name = name_as_bytes.encode("latin-1").decode(errors="replace")
    return FormPart(name, value.encode("latin-1") if isinstance(value, str) else value)
