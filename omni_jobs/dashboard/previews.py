"""The route of previews: the newest small picture of a stage run, which its progress has as a data URL.

The policy of the pages allows pictures of this server alone, and no data URLs.
"""

import base64
import binascii
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Response

from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Looks
from omni_jobs.errors import NotFound
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.http.request_parameters import JobId
from omni_jobs.views import JobView

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_LONGEST: Final = 256 << 10  # characters


@router.get("/jobs/{job_id}/previews/{stage}/{done}")
async def get_preview(visit: Looks, job_id: JobId, stage: str, done: int) -> Response:
    """Return the newest preview of a stage run. ``done``: of which step it is, so that the next has another URL."""
    job = await run_sync(visit.services.jobs.get, job_id, visit.caller.sees)
    media_type, data = _picture(job, stage)
    headers = {"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "private, max-age=60"}
    return Response(data, headers=headers, media_type=media_type)


def _picture(job: JobView, stage: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a stage's preview. Raises NotFound."""
    progress = next((each.progress for each in job.stages if each.name == stage), None)
    head, comma, text = ((progress.picture if progress else None) or "").partition(",")
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if not comma or len(text) > _LONGEST or head != f"data:{media_type};base64" or media_type not in SHOWN_TYPES:
        raise NotFound(f"job {job.id} has no preview of its stage {stage!r:.80}", field="stage")
    try:
        return media_type, base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotFound(f"the preview of job {job.id} is no base64", field="stage") from None
