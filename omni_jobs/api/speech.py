"""The route of speech, as OpenAI's clients send it: a job that makes sound of a text, for which the request waits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from omni_jobs.api.artifact_answer import bytes_answer, read_on_threads
from omni_jobs.api.event_stream import stream_of
from omni_jobs.api.needs import Submitter
from omni_jobs.api.submitted_jobs import SubmittedJobs, named_after
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequestDep
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.openai.speech.request import WantedSpeech, asked_speech
from omni_jobs.openai.speech.stream import speech_events
from omni_jobs.pipelines.outputs import AUDIO
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/audio/speech", tags=["openai"], route_class=OpenAIRoute)

_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string", "description": "the pipeline's name"},
        "input": {"type": "string", "description": "the text that is spoken"},
        "voice": {"description": "one of the pipeline's voices", "anyOf": [{"type": "string"}, {"type": "object"}]},
        "response_format": {"type": "string", "enum": [each.name for each in AUDIO.formats], "default": "mp3"},
    },
    "description": "the body of a speech; docs/openai.md says what becomes of each parameter",
}
_CONTENT: dict[str, Any] = {each.media_type: {} for each in AUDIO.formats} | {"text/event-stream": {}}


@router.post(
    "",
    response_class=Response,
    responses={
        200: {"content": _CONTENT, "description": "The sound; its job's id in `X-Job-Id`"},
        **WAITING_ERRORS,
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def create_speech(caller: Submitter, waiting: WaitingRequestDep) -> Response:
    """Speak a text: submit a job, and answer with its sound once it has completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes on.
    """
    waiting.reserve(caller)
    wanted, jobs = await waiting.submitted(caller, await waiting.read(), asked_speech)
    return named_after(jobs, await jobs.answer(partial(_spoken, wanted, jobs)))


def _spoken(wanted: WantedSpeech, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    """Return the answer with the sound of the completed job, which is read while it is sent."""
    [job] = completed
    sound = jobs.made(job, "audio")
    services, tenant = jobs.services, jobs.tenant
    if not wanted.as_events:
        return bytes_answer(services, sound.ref, None, {}, sound.media_type, tenant, head_only=False)
    pieces = read_on_threads(services.store.open_stream(sound.ref), services.artifact_threads, tenant)
    return stream_of(speech_events(job, wanted.stage, pieces))
