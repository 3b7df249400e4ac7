"""``read_body`` reads the body of a submit. It checks type and size before the body comes in and meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from omni_jobs.errors import InvalidRequest, RequestTooLarge, UnsupportedContentType

__all__ = ["SubmitBody", "read_body"]

_REQUEST = "request"
_PROMPT_EMBEDS = "prompt_embeds"


@dataclass(frozen=True, slots=True)
class SubmitBody:
    """The body of a submit: the request's JSON, and the safetensors file that came beside it in a multipart body."""

    json: bytes | bytearray
    prompt_embeds: bytes | None = None


async def read_body(request: Request, max_bytes: int) -> SubmitBody:
    """Read a JSON body, or a multipart body whose part ``request`` is the JSON and whose part ``prompt_embeds`` a file.

    Raises UnsupportedContentType, InvalidRequest naming the part, or RequestTooLarge without reading on.
    """
    media_type = _media_type(request)
    _check_length(request.headers.get("content-length"), max_bytes)
    chunks = _chunks(request, max_bytes)
    if media_type == "application/json":
        return SubmitBody(await _whole(chunks))
    try:
        form = await MultiPartParser(
            request.headers, chunks, max_files=2, max_fields=1, max_part_size=max_bytes
        ).parse()
    except (MultiPartException, KeyError) as error:  # KeyError: no boundary
        raise InvalidRequest(f"not a multipart body: {getattr(error, 'message', error)}", field="body") from None
    try:
        return await _of_form(form)
    finally:
        await form.close()


async def _whole(chunks: AsyncGenerator[bytes]) -> bytes | bytearray:
    """Return all chunks as one. They are appended one by one, because a join would hold the event loop for 100 ms."""
    body: bytes | bytearray = b""
    async for chunk in chunks:
        if not body:
            body = chunk
            continue
        if isinstance(body, bytes):
            body = bytearray(body)
        body += chunk
    return body


async def _of_form(form: FormData) -> SubmitBody:
    parts: dict[str, bytes] = {}
    for name, value in form.multi_items():
        if name not in (_REQUEST, _PROMPT_EMBEDS):
            raise InvalidRequest(f"unknown part; there are: {_REQUEST}, {_PROMPT_EMBEDS}", field=f"{name:.64}")
        if name in parts:
            raise InvalidRequest("this part is given twice", field=name)
        parts[name] = await value.read() if isinstance(value, UploadFile) else value.encode()
    if _REQUEST not in parts:
        raise InvalidRequest("this part is missing: the request as JSON", field=_REQUEST)
    return SubmitBody(parts[_REQUEST], parts.get(_PROMPT_EMBEDS))


async def _chunks(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield chunk


def _media_type(request: Request) -> str:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")
    if media_type == "multipart/form-data":
        return media_type
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type != "application/json" or charset not in ("", "utf-8"):
        raise UnsupportedContentType(field="Content-Type")
    return media_type


def _check_length(header: str | None, max_bytes: int) -> None:
    if header is None:
        return
    if not header.isascii() or not header.isdigit():
        raise InvalidRequest("not a number", field="Content-Length")
    if len(header) > 18 or int(header) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body has more than {max_bytes} bytes", field="body")
