"""``Download``: an artifact's bytes as they come, checked against its digest."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote, urljoin, urlsplit

import httpx2
import xxhash

from omni_jobs.client.repeats import error_of
from omni_jobs.client.steps import HttpRequest, Steps, StoreRequest, next_chunk, sent
from omni_jobs.errors import NotFound, ObjectCorrupt, ServerUnavailable
from omni_jobs.views import JobView

_CHUNK_BYTES = 1 << 20


class Download:
    """The download of a job's artifact, which nothing repeats."""

    def __init__(self, job: JobView, name: str) -> None:
        """Send nothing yet. Raises NotFound for an artifact that the job does not have."""
        artifact = next((artifact for artifact in job.artifacts if artifact.name == name), None)
        if artifact is None:
            known = ", ".join(artifact.name for artifact in job.artifacts) or "none"
            raise NotFound(f"job {job.id} has no artifact {name!r}; it has: {known}", field="name")
        self._key = f"{job.id}/{name}"
        path = f"/v1/jobs/{quote(job.id, safe='')}/artifacts/{quote(name, safe='')}"
        self._request = HttpRequest("GET", path, is_streamed=True, chunk_bytes=_CHUNK_BYTES)
        self._is_begun = False
        self._expected = artifact.digest
        self._digest = xxhash.xxh3_128()

    def next_chunk(self) -> Steps[bytes]:
        """Return the next bytes, 1 MiB at most; none at the end. Raises the errors of ``Calls.artifact``."""
        if not self._is_begun:
            yield from self._begin()
            self._is_begun = True
        chunk = yield from next_chunk()
        self._digest.update(chunk)
        if not chunk and self._expected != (received := f"xxh3:{self._digest.hexdigest()}"):
            raise ObjectCorrupt(f"digest {received}, expected {self._expected}", key=self._key)
        return chunk

    def _begin(self) -> Steps[None]:
        """Ask for the bytes: the server, or the store that it redirects to."""
        response = yield from sent(self._request)
        if response.status_code == HTTPStatus.TEMPORARY_REDIRECT:
            request = _at_store(response)
            stored = yield from sent(request)
            if not stored.is_success:
                raise ServerUnavailable(f"HTTP {stored.status_code} from the object store at {request.host}")
        elif not response.is_success:
            raise error_of(response)


def _at_store(response: httpx2.Response) -> StoreRequest:
    """Return the request to the object store that an answer redirects to. Raises ServerUnavailable for no URL."""
    try:
        url = urljoin(str(response.url), response.headers.get("Location", ""))
        urlsplit(url)
    except ValueError:
        raise ServerUnavailable("the server redirects a download to what is no URL") from None
    return StoreRequest(url, _CHUNK_BYTES)
