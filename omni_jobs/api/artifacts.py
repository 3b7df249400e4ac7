"""The route of artifacts: gets an output of a job, whole or in part."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from omni_jobs.api.artifact_answer import WantedPart, artifact_answer, artifact_answers
from omni_jobs.api.needs import Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Conflict, NotFound
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import JobId
from omni_jobs.jobs import StoredArtifact

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@router.get(
    "/{name}",
    response_class=StreamingResponse,
    responses={**artifact_answers(), **errors(404, 409, 410, 416, 503)},
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
