"""The route of transcriptions, as OpenAI's clients send them: a job that makes text of a recording."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response

from omni_jobs.api.artifact_answer import bytes_answer
from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.waiting_request import (
    WAITING_ERRORS,
    SubmittedJobs,
    WaitingRequest,
    WaitingRequestDep,
    named_after,
    with_ignored,
)
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.form_reader import read_form
from omni_jobs.openai.chat.answer import text_of
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.job_errors import JobFailure, made_once
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.openai.transcriptions.answer import (
    Transcription,
    VerboseTranscription,
    transcription_of,
    verbose_transcription_of,
)
from omni_jobs.openai.transcriptions.request import TRANSCRIPTION_NAMES, TranscriptionRequest, WantedTranscription
from omni_jobs.openai.transcriptions.stream import TranscriptionStream
from omni_jobs.requests import Submission
from omni_jobs.tenants.caller import Caller
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
_MOST_FILES = 2  # so that a second one is told by its name


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
async def create_transcription(
    caller: Submitter, request: Request, services: ServicesDep, waiting: WaitingRequestDep
) -> Response:
    """Write down what is said in a recording: submit a job, and answer with its text once it has completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    waiting.reserve(caller)
    with in_client_names(TRANSCRIPTION_NAMES):
        wanted, jobs = await _submitted(caller, request, services, waiting)
        answer = await (_stream(wanted, jobs) if wanted.stream else jobs.answer(partial(_whole, wanted, jobs)))
    return with_ignored(named_after(jobs, answer), wanted.ignored)


async def _submitted(
    caller: Caller, request: Request, services: Services, waiting: WaitingRequest
) -> tuple[WantedTranscription, SubmittedJobs]:
    """Read the form and submit its job. A function of its own, because the answer may be late."""
    form = await read_form(request, services.settings.max_body_bytes, max_files=_MOST_FILES)

    def parse() -> tuple[WantedTranscription, list[Submission]]:
        asked = TranscriptionRequest.of(form, services.pipelines)
        return asked.answer, [asked.submission(form, caller, waiting.idempotency_key)]

    return await waiting.submitted(caller, form.text_bytes, parse, more_bytes=form.file_bytes)


async def _stream(wanted: WantedTranscription, jobs: SubmittedJobs) -> Response:
    """Return the answer that streams the text. Raises JobFailure for an error that comes before its first event."""
    services = jobs.services
    stream = TranscriptionStream(services.jobs, services.watch, jobs.see, jobs.leave, jobs.place, wanted)
    with made_once(jobs.ids[0], has_key=jobs.has_key):
        return await answer_with(stream.events(jobs.ids[0]))


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
    services, tenant = jobs.services, jobs.caller.sees
    try:
        file = services.jobs.artifact(job.id, f"{wanted.stage}.{wanted.format}", tenant)
    except NotFound:
        why = "nobody tells the times of what was said; the job has the text"
        raise JobFailure(job.id, InvalidRequest(why, field="response_format"), HTTPStatus.BAD_REQUEST) from None
    return bytes_answer(services, file.ref, None, {}, f"{file.media_type}; charset=utf-8", tenant, head_only=False)
