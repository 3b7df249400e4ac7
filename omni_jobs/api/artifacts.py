"""The route of artifacts: gets an output of a job, whole or in part."""

import re
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.needs import Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Conflict, NotFound, RangeNotSatisfiable
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.downloads import content_disposition, download_name
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import JobId
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.jobs import StoredArtifact
from omni_jobs.storage import ObjectRef

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_STREAMED_ABOVE_BYTES = 256 << 10  # below, the steps of a stream cost more than the bytes
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class WantedPart:
    """What a client wants of an artifact, as the headers of its request say: the whole or a range, unless it has it."""

    range_: Annotated[str | None, Header(alias="Range")] = None
    if_range: Annotated[str | None, Header()] = None
    if_none_match: Annotated[str | None, Header()] = None


@router.get(
    "/{name}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The whole artifact", "content": {"application/octet-stream": {}}},
        206: {"description": "The part that Range names"},
        304: {"description": "The client has it: If-None-Match"},
        307: {"description": "The store has it at this URL, for a short time"},
        **errors(404, 409, 410, 416, 503),
    },
)
async def get_artifact(
    caller: Viewer,
    request: Request,
    job_id: JobId,
    name: str,
    services: ServicesDep,
    part: Annotated[WantedPart, Depends()],
    download: Annotated[
        str | None,
        Query(description="save it as a file of this name, or of its own if this is empty", examples=["story"]),
    ] = None,
) -> Response:
    """Get an output of a job, or a single range of its bytes. The ETag is the digest of the whole.

    410 once the artifact's time to live is over. 409 while the job may still make it.
    """

    def answer() -> Response:
        artifact = _find(services, job_id, name, caller.sees)
        return artifact_answer(services, artifact, part, request, caller.sees, download)

    return await services.artifact_threads.run(caller.sees, answer)


def artifact_answer(
    services: Services,
    artifact: StoredArtifact,
    part: WantedPart,
    request: Request,
    tenant: str | None,
    download: str | None = None,
) -> Response:
    """Return the answer with an artifact: its bytes, or a redirect to the store. Call it on a thread of the tenant.

    ``download``: the name under which the client saves it, "" for its own; None: a browser shows it, if nothing in it
    runs. Raises InvalidRequest for a name that no file should have, RangeNotSatisfiable and what the store raises.
    """
    is_shown = artifact.media_type in SHOWN_TYPES
    media_type = artifact.media_type if is_shown else "application/octet-stream"
    disposition = content_disposition(
        download_name(download or "", artifact.name, "download"), is_attachment=download is not None or not is_shown
    )
    etag = f'"{artifact.ref.digest}"'
    headers = {
        "ETag": etag,
        "Content-Disposition": disposition,
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, immutable, max-age=86400",
    }
    head_only = request.state.method == "HEAD"
    if part.if_none_match is not None and _has_etag(part.if_none_match, etag):
        return Response(status_code=304, headers=headers)
    # The status page's policy lets it show pictures of this server alone.
    if request.headers.get("sec-fetch-dest") != "image":
        url = services.store.download_url(
            artifact.ref, media_type=media_type, disposition=disposition, head_only=head_only
        )
        if url is not None:
            return Response(status_code=307, headers={"Location": url})
    span = _span(part.range_, artifact.ref.size) if part.if_range in (None, etag) else None
    return bytes_answer(services, artifact.ref, span, headers, media_type, tenant, head_only=head_only)


def bytes_answer(
    services: Services,
    ref: ObjectRef,
    span: tuple[int, int] | None,
    headers: dict[str, str],
    media_type: str,
    tenant: str | None,
    *,
    head_only: bool,
) -> Response:
    """Return the answer with the bytes of an object, or with the part ``span`` of them. Call it on a thread.

    Raises RangeNotSatisfiable and what the store raises.
    """
    status, (start, stop) = (200, (0, ref.size)) if span is None else (206, span)
    if span is not None:
        if start >= stop:
            raise RangeNotSatisfiable(f"the artifact has {ref.size} bytes", size=ref.size, field="Range")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{ref.size}"
    headers["Content-Length"] = str(stop - start)
    if head_only:
        return Response(None, status, headers, media_type=media_type)
    store = services.store
    is_whole = (start, stop) == (0, ref.size)
    pieces = store.open_stream(ref) if is_whole else store.open_range(ref, start, stop)
    if stop - start <= _STREAMED_ABOVE_BYTES:
        return Response(b"".join(pieces), status, headers, media_type=media_type)
    return StreamingResponse(
        read_on_threads(pieces, services.artifact_threads, tenant), status, headers, media_type=media_type
    )


async def read_on_threads(
    pieces: Generator[bytes], threads: TenantThreads, tenant: str | None
) -> AsyncGenerator[bytes, None]:
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
