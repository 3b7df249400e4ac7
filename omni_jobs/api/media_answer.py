"""``media_answer``: an answer in JSON that has media in base64, read from the store as the client reads the answer."""

from collections.abc import Sequence
from typing import Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.artifact_answer import read_on_threads
from omni_jobs.api.submitted_jobs import SubmittedJobs
from omni_jobs.openai.media_in_json import length_of, pieces_of
from omni_jobs.storage import ObjectRef

_WHOLE_BYTES: Final = 8 << 20  # up to these an answer is made whole, so that one that cannot be made is an error


def media_answer(jobs: SubmittedJobs, text: str, gap: str, media: Sequence[ObjectRef]) -> Response:
    """Return the answer ``text``, a medium in each ``gap`` as ``pieces_of`` has them. Call this on a thread.

    Raises what the store raises; where it breaks off within much media, so does the answer.
    """
    services = jobs.services
    sizes = [ref.size for ref in media]
    pieces = pieces_of(text, gap, map(services.store.open_stream, media))
    if sum(sizes) <= _WHOLE_BYTES:
        return Response(b"".join(pieces), media_type="application/json")
    streamed = read_on_threads(pieces, services.artifact_threads, jobs.tenant)
    headers = {"Content-Length": str(length_of(text, sizes))}
    return StreamingResponse(streamed, headers=headers, media_type="application/json")
