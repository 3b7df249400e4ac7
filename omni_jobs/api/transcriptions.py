"""The route of transcriptions, as OpenAI's clients send them: a job that makes text of a recording."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response

from omni_jobs.api.artifact_answer import bytes_answer
from omni_jobs.api.needs import Submitter
from omni_jobs.api.submitted_jobs import SubmittedJobs, named_after
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequestDep
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.openai.chat.answer import text_of
from omni_jobs.openai.job_errors import JobFailure
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.openai.transcriptions.answer import (
    Transcription,
    VerboseTranscription,
    transcription_of,
    verbose_transcription_of,
)
from omni_jobs.openai.transcriptions.request import TRANSCRIPTION_FORM, WantedTranscription, asked_transcription
from omni_jobs.openai.transcriptions.stream import TranscriptionStream
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/audio/transcriptions", tags=["openai"], route_class=OpenAIRoute)

_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "the recording"},
        "model": {"type": "string", "description": "the pipeline's name"},
        "response_format": {"type": "string", "enum": ["json", "text", "srt", "vtt", "verbose_json"]},
    },
    "description": "the form of a transcription; docs/openai.md says what becomes of each parameter",
}
_TEXTS = ("text/plain", "application/x-subrip", "text/vtt", "text/event-stream")


@router.post(
    "",
    response_model=Transcription | VerboseTranscription,
    responses={
        200: {
            "content": {media_type: {} for media_type in _TEXTS},
            "description": "The text, in the form that was asked for; its job's id in `X-Job-Id`",
        },
        **WAITING_ERRORS,
    },
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def create_transcription(caller: Submitter, waiting: WaitingRequestDep) -> Response:
    """Write down what is said in a recording: submit a job, and answer with its text once it has completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    waiting.reserve(caller)
    wanted, jobs = await waiting.submitted(caller, await waiting.read(TRANSCRIPTION_FORM), asked_transcription)
    if wanted.stream:
        return named_after(jobs, await jobs.stream(TranscriptionStream(jobs, wanted)))
    return named_after(jobs, await jobs.answer(partial(_whole, wanted, jobs)))


def _whole(wanted: WantedTranscription, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    """Return the answer to the completed job in the form that is wanted."""
    [job] = completed
    match wanted.format:
        case "text":
            return Response(text_of(job), media_type="text/plain")
        case "srt" | "vtt":
            return _subtitles(wanted, jobs, job)
        case "verbose_json":
            made = verbose_transcription_of(job, wanted).model_dump_json(exclude_none=True)
        case _:
            made = transcription_of(job, wanted).model_dump_json(exclude_none=True)
    return Response(made, media_type="application/json")


def _subtitles(wanted: WantedTranscription, jobs: SubmittedJobs, job: JobView) -> Response:
    """Return the answer with the subtitles that the stage has made. Raises JobFailure where it could make none."""
    services, tenant = jobs.services, jobs.tenant
    try:
        file = services.jobs.artifact(job.id, f"{wanted.stage}.{wanted.format}", tenant)
    except NotFound:
        why = "nobody tells the times of what was said; the job has the text"
        raise JobFailure(job.id, InvalidRequest(why, field="response_format"), HTTPStatus.BAD_REQUEST) from None
    return bytes_answer(services, file.ref, None, {}, f"{file.media_type}; charset=utf-8", tenant, head_only=False)
