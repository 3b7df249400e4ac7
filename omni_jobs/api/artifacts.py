"""The route of artifacts: gets an output of a job, whole or in part."""

import re
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.needs import Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Conflict, NotFound, RangeNotSatisfiable
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import JobId
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.jobs import StoredArtifact

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_STREAMED_ABOVE_BYTES = 256 << 10  # below, the steps of a stream cost more than the bytes
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@router.get(
    "/{name}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The whole artifact", "content": {"application/octet-stream": {}}},
        206: {"description": "The part that Range names"},
        304: {"description": "The client has it: If-None-Match"},
        **errors(404, 409, 410, 416, 503),
    },
)
async def get_artifact(
    caller: Viewer,
    request: Request,
    job_id: JobId,
    name: str,
    services: ServicesDep,
    range_: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Get an output of a job, or a single range of its bytes. The ETag is the digest of the whole.

    410 once the artifact's time to live is over. 409 while the job may still make it.
    """

    def answer() -> Response:
        artifact = _find(services, job_id, name, caller.sees)
        headers = _headers(artifact)
        if if_none_match is not None and _has_etag(if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        span = _span(range_, artifact.ref.size) if if_range in (None, headers["ETag"]) else None
        return _answer(services, artifact, span, caller.sees, head_only=request.state.method == "HEAD")

    return await services.artifact_threads.run(caller.sees, answer)


def _headers(artifact: StoredArtifact) -> dict[str, str]:
    """Return the headers of every answer that has an artifact, or says that the client has it."""
    disposition = "inline" if artifact.media_type in SHOWN_TYPES else "attachment"
    return {
        "ETag": f'"{artifact.ref.digest}"',
        "Content-Disposition": f'{disposition}; filename="{artifact.name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, immutable, max-age=86400",
    }


def _answer(
    services: Services, artifact: StoredArtifact, span: tuple[int, int] | None, tenant: str | None, *, head_only: bool
) -> Response:
    """Return the answer with an artifact, or with the part ``span`` of it. Raises RangeNotSatisfiable."""
    ref = artifact.ref
    headers = _headers(artifact)
    media_type = artifact.media_type if artifact.media_type in SHOWN_TYPES else "application/octet-stream"
    status, (start, stop) = (200, (0, ref.size)) if span is None else (206, span)
    if span is not None:
        if start >= stop:
            raise RangeNotSatisfiable(f"the artifact has {ref.size} bytes", size=ref.size, field="Range")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{ref.size}"
    headers["Content-Length"] = str(stop - start)
    if head_only:
        return Response(None, status, headers, media_type=media_type)
    pieces = _part(services.store.open_stream(ref), start, stop, ref.size)
    if stop - start <= _STREAMED_ABOVE_BYTES:
        return Response(b"".join(pieces), status, headers, media_type=media_type)
    return StreamingResponse(
        _on_threads(pieces, services.artifact_threads, tenant), status, headers, media_type=media_type
    )


async def _on_threads(pieces: Generator[bytes], threads: TenantThreads, tenant: str | None) -> AsyncIterator[bytes]:
    """Yield the pieces, each read on one of the tenant's threads."""
    with closing(pieces):
        while (piece := await threads.run(tenant, partial(next, pieces, None), goes_on=True)) is not None:
            yield piece


def _find(services: Services, job_id: str, name: str, tenant: str | None) -> StoredArtifact:
    """Return an artifact. Raises NotFound, Gone after its time to live, Conflict while the job may still make it."""
    try:
        if not _NAME.fullmatch(name):
            raise NotFound(f"job {job_id} has no artifact {name!r:.80}", field="name")
        return services.jobs.artifact(job_id, name, tenant)
    except NotFound:
        status = services.jobs.get(job_id, tenant).status
        if status.is_final:
            raise
        raise Conflict(f"job {job_id} is {status.value}: {name} is not there yet", field="name") from None


def _has_etag(header: str, etag: str) -> bool:
    """Return whether the header ``If-None-Match`` names this ETag."""
    return header.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in header.split(","))


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last; None, for the whole, if ``Range`` is no single byte range."""
    match = _RANGE.fullmatch(header) if header is not None else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _part(pieces: Iterator[bytes], start: int, stop: int, size: int) -> Generator[bytes]:
    """Yield the bytes of an object from ``start`` up to ``stop``, the last of them only once all pieces are read.

    The store checks the object's digest at its end. So all of it is read for any part of it, and a damaged object is
    never sent as a whole part.
    """
    if (start, stop) == (0, size):
        yield from pieces  # the store holds back the end of the whole by itself
        return
    at = 0
    held_back = b""
    for piece in pieces:
        part = piece[max(0, start - at) : max(0, stop - at)]
        at += len(piece)
        if part:
            if held_back:
                yield held_back
            held_back = part
    yield held_back
