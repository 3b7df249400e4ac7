"""``read_body``: reads the body of a submit, JSON or multipart, and checks its type and size before it is whole."""

import re
from collections.abc import AsyncGenerator

from fastapi import Request
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from omni_jobs.errors import InvalidRequest, RequestTooLarge, UnsupportedContentType

_JSON = "application/json"
_MULTIPART = "multipart/form-data"
_REQUEST = "request"
_PROMPT_EMBEDS = "prompt_embeds"
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)"?', re.IGNORECASE)


def check_content_type(request: Request, *types: str) -> str:
    """Return the body's type, in small letters and without parameters.

    Raises UnsupportedContentType if it is none of ``types``, in another charset than UTF-8, or compressed.
    """
    content_type, _, parameters = request.headers.get("content-type", "").partition(";")
    content_type = content_type.strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")
    charset = _CHARSET.search(f";{parameters}")
    is_utf8 = charset is None or charset[1].lower() == "utf-8"
    if content_type not in types or not is_utf8 or (content_type == _JSON and charset is None and parameters.strip()):
        raise UnsupportedContentType(None if _JSON in types else f"must be {' or '.join(types)}", field="Content-Type")
    return content_type


async def read_body(request: Request, max_bytes: int) -> tuple[bytes | bytearray, bytes | None]:
    """Read the body of a submit: JSON, or multipart with the JSON in ``request`` and a file in ``prompt_embeds``.

    Return the bytes of the JSON, unparsed, and of the safetensors file or None. Raises UnsupportedContentType,
    InvalidRequest naming the part or ``body``, RequestTooLarge without reading on, and what ``Body.receive`` raises.
    """
    content_type = check_content_type(request, _JSON, _MULTIPART)
    chunks = _chunks(request, max_bytes)
    if content_type == _JSON:
        body = bytearray()  # it grows by each chunk, because a join would hold the event loop for 100 ms
        async for chunk in chunks:
            body += chunk
        return body, None
    try:
        form = await _Parser(
            _as_bytes(request.headers), chunks, max_files=2, max_fields=1, max_part_size=max_bytes
        ).parse()
    except (MultiPartException, KeyError) as error:  # KeyError: no boundary
        raise InvalidRequest(f"not a multipart body: {getattr(error, 'message', error)}", field="body") from None
    try:
        return await _read_parts(form)
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


def _as_bytes(headers: Headers) -> Headers:
    """Return the headers with which Starlette reads a part of text as its bytes, one by one, as Latin-1.

    It would else read a part that is not UTF-8 so, and nobody would know it from one that is.
    """
    return Headers({"content-type": _CHARSET.sub("", headers["content-type"]) + "; charset=latin-1"})


async def _read_parts(form: FormData) -> tuple[bytes, bytes | None]:
    """Return the parts ``request`` and ``prompt_embeds`` of a form. Raises InvalidRequest naming the part."""
    parts: dict[str, bytes] = {}
    for name_as_bytes, value in form.multi_items():
        name = name_as_bytes.encode("latin-1").decode(errors="replace")
        if name not in (_REQUEST, _PROMPT_EMBEDS):
            raise InvalidRequest(f"unknown part; there are: {_REQUEST}, {_PROMPT_EMBEDS}", field=f"{name:.64}")
        if name in parts:
            raise InvalidRequest("this part is given twice", field=name)
        parts[name] = await value.read() if isinstance(value, UploadFile) else value.encode("latin-1")
    if _REQUEST not in parts:
        raise InvalidRequest("this part is missing: the request as JSON", field=_REQUEST)
    return parts[_REQUEST], parts.get(_PROMPT_EMBEDS)


async def _chunks(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the body as it comes in. Raises RequestTooLarge as soon as it has, or declares, more than ``max_bytes``."""
    error = RequestTooLarge(f"the body has more than {max_bytes} bytes (max_body_bytes)", field="body")
    if (request.state.body.content_length or 0) > max_bytes:
        raise error
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise error
        yield chunk
