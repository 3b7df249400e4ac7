"""Reading a JSON body: its type and its size are judged before, and while, it comes in."""

from __future__ import annotations

from fastapi import Request

from omni_jobs.errors import InvalidRequest, RequestTooLarge, UnsupportedContentType

__all__ = ["read_json_body"]


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """The bytes. Raises UnsupportedContentType, or RequestTooLarge without reading on."""
    _check_type(request)
    _check_length(request.headers.get("content-length"), max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _check_type(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8"):
        raise UnsupportedContentType(field="Content-Type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedContentType("the body must not be compressed", field="Content-Encoding")


def _check_length(header: str | None, max_bytes: int) -> None:
    if header is None:
        return
    if not header.isascii() or not header.isdigit():
        raise InvalidRequest("not a number", field="Content-Length")
    if len(header) > 18 or int(header) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body has more than {max_bytes} bytes", field="body")
