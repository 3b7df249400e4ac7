"""Routes of videos, as OpenAI's clients ask for them: a job for each. No request waits for one."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from omni_jobs.api import cancelled_job
from omni_jobs.api.artifact_answer import WantedPart, artifact_answer, artifact_answers, artifact_of
from omni_jobs.api.needs import Reader, Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequestDep
from omni_jobs.errors import Conflict, Gone, InvalidRequest, NotFound
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import WholeNumber
from omni_jobs.jobs import Detail, StoredArtifact, VideoJob
from omni_jobs.openai.job_errors import error_of
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.openai.videos.answer import (
    DeletedVideo,
    VideoList,
    VideoOfJob,
    job_id_of,
    poll_after_ms,
    video_id_of,
    video_of,
)
from omni_jobs.openai.videos.request import VIDEO_FORM, asked_video
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/videos", tags=["openai"], route_class=OpenAIRoute)

_DIGITS = re.compile(r"[0-9a-f]{32}")
_ID = f"^video_{_DIGITS.pattern}$"
_JSON, _FORM = "application/json", "multipart/form-data"
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model", "prompt"],
    "properties": {
        "model": {"type": "string", "description": "the pipeline's name"},
        "prompt": {"type": "string"},
        "seconds": {"type": "string", "examples": ["4"]},
        "size": {"type": "string", "examples": ["832x480"]},
    },
    "description": "what is asked for; docs/openai.md says what becomes of each parameter",
}
_IN_FORM = _BODY | {"properties": _BODY["properties"] | {"input_reference": {"type": "string", "format": "binary"}}}


async def _job_id(digits: str) -> str:  # async, because FastAPI calls other functions on a thread
    if not _DIGITS.fullmatch(digits):
        raise NotFound(f"there is no video 'video_{digits:.80}'", field="video_id")
    return f"job-{digits}"


OfVideo = Annotated[str, Depends(_job_id)]
"""The id of the job whose video a path names."""


@router.post(
    "",
    response_model=VideoOfJob,
    responses=WAITING_ERRORS,
    openapi_extra={
        "requestBody": {"required": True, "content": {_FORM: {"schema": _IN_FORM}, _JSON: {"schema": _BODY}}}
    },
)
async def create_video(caller: Submitter, services: ServicesDep, waiting: WaitingRequestDep) -> Response:
    """Submit a job that makes a video, and answer at once. Ask for it by its id until it is `completed` or `failed`."""
    _, jobs = await waiting.submitted(caller, await waiting.read(VIDEO_FORM), asked_video)
    return await jobs.answer_now(run_sync(lambda: _answer(_shown(services, _found(services, jobs.ids[0], caller)))))


@router.get("", response_model=VideoList, responses=errors(400, 503))
async def list_videos(
    caller: Reader,
    services: ServicesDep,
    after: Annotated[str | None, Query(pattern=_ID, description="`last_id` of a page: what stands behind it")] = None,
    limit: Annotated[int, Query(ge=1, le=100), WholeNumber] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="by time: desc, the newest first")] = "desc",
) -> Response:
    """List the jobs that make a video, whatever they were submitted by."""

    def read() -> Response:
        page = services.jobs.video_jobs(
            limit,
            None if after is None else job_id_of(after),
            oldest_first=order == "asc",
            tenant=caller.sees,
        )
        videos = [_shown(services, each) for each in page.jobs]
        first_id, last_id = (videos[0].id, videos[-1].id) if videos else (None, None)
        return _answer(VideoList(data=videos, first_id=first_id, last_id=last_id, has_more=page.has_more))

    return await services.list_threads.run(caller.sees, read)


@router.get(
    "/video_{digits}",
    response_model=VideoOfJob,
    responses={
        200: {
            "headers": {
                "openai-poll-after-ms": {
                    "description": "after how long to ask again, unless the job has ended",
                    "schema": {"type": "integer"},
                }
            }
        },
        **errors(400, 404, 503),
    },
)
def get_video(caller: Reader, job_id: OfVideo, services: ServicesDep) -> Response:
    """Get a video: its job's state and progress."""
    found = _found(services, job_id, caller)
    answer = _answer(_shown(services, found))
    after_ms = poll_after_ms(found, datetime.now(UTC))
    if after_ms is not None:
        answer.headers["openai-poll-after-ms"] = str(after_ms)
    return answer


@router.delete("/video_{digits}", response_model=DeletedVideo, responses=errors(400, 403, 404, 409, 503))
async def delete_video(caller: Submitter, job_id: OfVideo, request: Request, services: ServicesDep) -> Response:
    """Delete a video with its job and all its data. A job that has not ended is cancelled first.

    409 while a worker still stops it, which takes longer than 5 s only where the worker hangs: delete it again.
    """
    await run_sync(_found, services, job_id, caller)
    await cancelled_job.delete(services, caller, job_id, request, "video_id")
    return _answer(DeletedVideo(id=video_id_of(job_id)))


@router.get(
    "/video_{digits}/content",
    response_class=StreamingResponse,
    responses={**artifact_answers("video"), **errors(400, 404, 409, 410, 416, 503)},
)
async def get_video_content(
    caller: Reader,
    job_id: OfVideo,
    request: Request,
    services: ServicesDep,
    part: Annotated[WantedPart, Depends()],
    variant: Annotated[
        Literal["video", "thumbnail", "spritesheet"], Query(description="video; there are no others of a job")
    ] = "video",
) -> Response:
    """Get the file of a completed video, or a single range of its bytes.

    409 while there is none yet, or where the job made none. 410 once its time to live is over.
    """
    if variant != "video":
        raise InvalidRequest(f"there is no {variant}: only the video itself is kept", field="variant")

    def answer() -> Response:
        artifact = _made(services, _found(services, job_id, caller).job, caller)
        return artifact_answer(services, artifact, part, request, caller.sees)

    return await services.artifact_threads.run(caller.sees, answer)


def _found(services: Services, job_id: str, caller: Caller) -> VideoJob:
    """Return the job of a video as the caller may see it. Raises NotFound, naming the video."""
    detail = Detail.FINE if caller.may(Scope.ADMIN) else Detail.COARSE
    try:
        return services.jobs.video_job(job_id, caller.sees, detail=detail)
    except NotFound:
        raise NotFound(f"there is no video {video_id_of(job_id)!r}", field="video_id") from None


def _shown(services: Services, made: VideoJob) -> VideoOfJob:
    pipeline = services.pipelines.version_or_newest(made.job.pipeline, made.job.pipeline_version)
    return video_of(made, pipeline, services.settings.keep_artifacts_s)


def _made(services: Services, job: JobView, caller: Caller) -> StoredArtifact:
    """Return the artifact that is the video. Raises Conflict while, or because, there is none, and Gone after its time.

    Another output of the job may have failed, or still be made.
    """
    artifact = artifact_of(services, job, "video", caller.sees)
    if artifact is not None:
        return artifact
    if job.status is JobState.COMPLETED:
        raise Gone("the video is not kept any longer", field="video_id")
    why = f"the video failed: {error_of(job).message}" if job.status.is_final else "the video is not made yet"
    raise Conflict(why, field="video_id")


def _answer(shown: BaseModel) -> Response:
    """Return a view as JSON. Call this on a thread."""
    return Response(shown.model_dump_json(), media_type=_JSON)
