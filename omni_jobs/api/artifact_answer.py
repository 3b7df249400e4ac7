"""Answers with an artifact, for any route of what jobs made: its bytes, whole or in part, or where the store has it."""

import re
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.services import Services
from omni_jobs.errors import RangeNotSatisfiable
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.downloads import content_disposition, download_name
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.jobs import StoredArtifact
from omni_jobs.pipelines.outputs import output
from omni_jobs.storage import ObjectRef
from omni_jobs.views import JobView

_BYTES: Final = "application/octet-stream"
# The dashboard's policy lets a page show, play and read what this server has alone. "empty": a script reads it.
_SHOWN_IN_PAGES: Final = ("image", "audio", "video", "empty")
_STREAMED_ABOVE_BYTES = 256 << 10  # below, the steps of a stream cost more than the bytes
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class WantedPart:
    """What a client wants of an artifact, as the headers of its request say: the whole or a range, unless it has it."""

    range_: Annotated[str | None, Header(alias="Range")] = None
    if_range: Annotated[str | None, Header()] = None
    if_none_match: Annotated[str | None, Header()] = None


def artifact_answers(kind: str = "") -> dict[int | str, dict[str, Any]]:
    """Return the declaration of the answers with an artifact, for a route's ``responses``.

    ``kind``: before the slash of its media type, such as "video"; "": any.
    """
    types = sorted({_BYTES, *(media_type for media_type in SHOWN_TYPES if media_type.startswith(kind))})
    return {
        200: {"description": f"The whole {kind or 'artifact'}", "content": {media_type: {} for media_type in types}},
        206: {"description": "The part that Range names"},
        304: {"description": "The client has it: If-None-Match"},
        307: {"description": "The store has it at this URL, for a short time"},
    }


def artifact_of(services: Services, job: JobView, modality: str, tenant: str | None) -> StoredArtifact | None:
    """Return the artifact that a job has made of an output; None: it has none yet, or any longer.

    Call this on a thread. Raises NotFound for an artifact that went meanwhile.
    """
    kind = output(modality)
    names = {kind.artifact_name(format) for format in kind.formats}
    name = next((artifact.name for artifact in job.artifacts if artifact.name in names), None)
    return None if name is None else services.jobs.artifact(job.id, name, tenant)


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
    media_type, disposition = _served_as(artifact, download)
    etag = f'"{artifact.ref.digest}"'
    headers = {
        "ETag": etag,
        "Content-Disposition": disposition,
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",  # a retry may make another one; the ETag makes asking cheap
    }
    head_only = request.state.method == "HEAD"
    if part.if_none_match is not None and _has_etag(part.if_none_match, etag):
        return Response(status_code=304, headers=headers)
    if request.headers.get("sec-fetch-dest") not in _SHOWN_IN_PAGES:
        url = presigned_url(services, artifact, download, head_only=head_only)
        if url is not None:
            return Response(status_code=307, headers={"Location": url})
    span = _span(part.range_, artifact.ref.size) if part.if_range in (None, etag) else None
    return bytes_answer(services, artifact.ref, span, headers, media_type, tenant, head_only=head_only)


def presigned_url(
    services: Services, artifact: StoredArtifact, download: str | None = None, *, head_only: bool = False
) -> str | None:
    """Return the URL by which whoever has it gets an artifact from the store for a short time; None: there is none.

    ``download`` is as in ``artifact_answer``. Call this on a thread. Raises StorageUnavailable.
    """
    media_type, disposition = _served_as(artifact, download)
    return services.store.download_url(
        artifact.ref, media_type=media_type, disposition=disposition, head_only=head_only
    )


def _served_as(artifact: StoredArtifact, download: str | None) -> tuple[str, str]:
    """Return the media type and the disposition with which an artifact is served. Raises InvalidRequest."""
    is_shown = artifact.media_type in SHOWN_TYPES
    name = download_name(download or "", artifact.name, "download")
    disposition = content_disposition(name, is_attachment=download is not None or not is_shown)
    return artifact.media_type if is_shown else _BYTES, disposition


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
