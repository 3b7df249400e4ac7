"""``read_body`` and ``read_json`` read a submit's body, and check its type and size before it is whole."""

from collections.abc import AsyncGenerator

from fastapi import Request

from omni_jobs.errors import InvalidRequest, RequestTooLarge, UnsupportedContentType
from omni_jobs.http.multipart import CHARSET, FormPart, open_parts

_JSON = "application/json"
_MULTIPART = "multipart/form-data"
_REQUEST = "request"
_PROMPT_EMBEDS = "prompt_embeds"


def check_content_type(request: Request, *types: str) -> str:
    """Return the body's type, in small letters and without parameters.

    Raises UnsupportedContentType if it is none of ``types``, in another charset than UTF-8, or compressed.
    """
    content_type, _, parameters = request.headers.get("content-type", "").partition(";")
    content_type = content_type.strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")
    charset = CHARSET.search(f";{parameters}")
    is_utf8 = charset is None or charset[1].lower() == "utf-8"
    if content_type not in types or not is_utf8 or (content_type == _JSON and charset is None and parameters.strip()):
        raise UnsupportedContentType(None if _JSON in types else f"must be {' or '.join(types)}", field="Content-Type")
    return content_type


async def read_body(request: Request, max_bytes: int) -> tuple[bytes | bytearray, memoryview | None]:
    """Read the body of a submit: JSON, or multipart with the JSON in ``request`` and a file in ``prompt_embeds``.

    Return the bytes of the JSON, unparsed, and of the safetensors file or None. Raises UnsupportedContentType,
    InvalidRequest naming the part or ``body``, RequestTooLarge without reading on, and what ``Body.receive`` raises.
    """
    if check_content_type(request, _JSON, _MULTIPART) == _JSON:
        return await read_json(request, max_bytes), None
    chunks = chunks_of(request, max_bytes)
    given: dict[str, FormPart] = {}
    header = request.headers["content-type"]
    async with open_parts(header, chunks, max_files=2, max_texts=1, max_text_bytes=max_bytes) as parts:
        for part in parts:
            if part.name not in (_REQUEST, _PROMPT_EMBEDS):
                raise InvalidRequest(f"unknown part; there are: {_REQUEST}, {_PROMPT_EMBEDS}", field=f"{part.name:.64}")
            if part.name in given:
                raise InvalidRequest("this part is given twice", field=part.name)
            given[part.name] = part
        if _REQUEST not in given:
            raise InvalidRequest("this part is missing: the request as JSON", field=_REQUEST)
        embeds = await given[_PROMPT_EMBEDS].map() if _PROMPT_EMBEDS in given else None
        return await given[_REQUEST].read(), embeds


async def read_json(request: Request, max_bytes: int) -> bytearray:
    """Read a body of JSON, and return its bytes, unparsed. Raises as ``read_body`` does."""
    check_content_type(request, _JSON)
    body = bytearray()  # it grows by each chunk, because a join would hold the event loop for 100 ms
    async for chunk in chunks_of(request, max_bytes):
        body += chunk
    return body


async def chunks_of(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
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
