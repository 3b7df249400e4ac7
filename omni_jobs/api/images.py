"""Routes of pictures, as OpenAI's clients ask for them: a job for each picture, for which the request waits."""

from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from omni_jobs.api.artifact_answer import presigned_url, read_on_threads
from omni_jobs.api.media_answer import media_answer
from omni_jobs.api.needs import Submitter
from omni_jobs.api.submitted_jobs import SubmittedJobs
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequestDep
from omni_jobs.jobs import StoredArtifact
from omni_jobs.openai.images.answer import GAP, ImagesAnswer, images_answer
from omni_jobs.openai.images.request import EDIT_FORM, WantedPictures, asked_edit, asked_generation
from omni_jobs.openai.images.stream import ImageStream
from omni_jobs.openai.media_in_json import as_base64
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.pipelines.outputs import IMAGE
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/images", tags=["openai"], route_class=OpenAIRoute)

_COMMON: dict[str, Any] = {
    "model": {"type": "string", "description": "the pipeline's name"},
    "prompt": {"type": "string"},
    "n": {"type": "integer", "minimum": 1, "maximum": 10},
    "size": {"type": "string", "examples": ["1024x768", "auto"]},
    "output_format": {"type": "string", "enum": ["png", "jpeg", "webp"]},
    "response_format": {"type": "string", "enum": ["b64_json", "url"]},
    "stream": {"type": "boolean"},
    "partial_images": {"type": "integer", "minimum": 0, "maximum": 3},
}
_GENERATION: dict[str, Any] = {
    "type": "object",
    "required": ["model", "prompt"],
    "properties": _COMMON,
    "description": "a description of pictures; docs/openai.md says what becomes of each parameter",
}
_EDIT: dict[str, Any] = {
    "type": "object",
    "required": ["model", "prompt", "image"],
    "properties": _COMMON | {"image": {"type": "string", "format": "binary", "description": "or several `image[]`"}},
    "description": "pictures and what is to be made of them; docs/openai.md says what becomes of each parameter",
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The pictures, or with `stream` the events of each"},
    **WAITING_ERRORS,
}


@router.post(
    "/generations",
    response_model=ImagesAnswer,
    responses=_ANSWERS,
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _GENERATION}}}},
)
async def generate_images(caller: Submitter, request: Request, waiting: WaitingRequestDep) -> Response:
    """Draw pictures: submit a job for each, and answer once they have completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes on. With
    `stream` previews come while a picture is drawn.
    """
    waiting.reserve(caller)
    return await _answer(request, *await waiting.submitted(caller, await waiting.read(), asked_generation))


@router.post(
    "/edits",
    response_model=ImagesAnswer,
    responses=_ANSWERS,
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _EDIT}}}},
)
async def edit_images(caller: Submitter, request: Request, waiting: WaitingRequestDep) -> Response:
    """Make pictures of others: submit a job for each, and answer once they have completed, as for generations."""
    waiting.reserve(caller)
    return await _answer(request, *await waiting.submitted(caller, await waiting.read(EDIT_FORM), asked_edit))


async def _answer(request: Request, wanted: WantedPictures, jobs: SubmittedJobs) -> Response:
    """Return the answer once the jobs have completed, or the one that streams their pictures."""
    if wanted.stream:
        return await jobs.stream(ImageStream(jobs, partial(_streamed, jobs), wanted))
    return await jobs.answer(partial(_whole, request, wanted, jobs))


def _whole(request: Request, wanted: WantedPictures, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    made = [jobs.made(job, "image") for job in completed]
    urls = None
    if wanted.as_url:
        urls = [_url(request, jobs, job, each) for job, each in zip(completed, made, strict=True)]
    answer = images_answer(completed, _format(made[0]), wanted.size, has_sources=wanted.has_sources, urls=urls)
    if urls is not None:
        return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")
    return media_answer(jobs, answer.model_dump_json(exclude_none=True), GAP, [each.ref for each in made])


async def _streamed(jobs: SubmittedJobs, job: JobView) -> tuple[str, AsyncGenerator[bytes, None]]:
    """Return the format of a completed job's picture, and its base64 in pieces. Raises what the reads raise."""
    made, pieces = await jobs.on_artifact_thread(partial(_opened, jobs, job), goes_on=True)
    return _format(made), read_on_threads(pieces, jobs.artifact_threads, jobs.tenant)


def _opened(jobs: SubmittedJobs, job: JobView) -> tuple[StoredArtifact, Generator[bytes]]:
    """Return the picture of a completed job, and the base64 of that in pieces, of which the first is read already.

    So an error of the store is told, but for one in the middle of a large picture. Call this on a thread.
    """
    made = jobs.made(job, "image")
    pieces = as_base64(jobs.services.store.open_stream(made.ref))
    return made, _from(next(pieces), pieces)


def _from(first: bytes, rest: Generator[bytes]) -> Generator[bytes]:
    yield first
    yield from rest


def _format(made: StoredArtifact) -> str:
    """Return the format's name, that of the file itself: a remote server may have chosen another."""
    return next(format.name for format in IMAGE.formats if format.media_type == made.media_type)


def _url(request: Request, jobs: SubmittedJobs, job: JobView, made: StoredArtifact) -> str:
    """Return the store's own URL of an artifact; without one ours, at the host that the client has asked."""
    url = presigned_url(jobs.services, made)
    if url is not None:
        return url
    scheme = "https" if jobs.services.transport.is_https(request.scope) else "http"
    root = jobs.services.settings.root_path
    return f"{scheme}://{request.url.netloc}{root}/v1/jobs/{job.id}/artifacts/{made.name}"
