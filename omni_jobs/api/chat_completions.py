"""The route of chat completions, as OpenAI's clients send them: a job for each choice, for which the request waits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from omni_jobs.api.artifact_answer import read_on_threads
from omni_jobs.api.media_answer import media_answer
from omni_jobs.api.needs import Submitter
from omni_jobs.api.submitted_jobs import SubmittedJobs
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequestDep
from omni_jobs.openai.chat.answer import GAP, ChatCompletion, completion_of, sound_of
from omni_jobs.openai.chat.request import WantedAnswer, asked_chat
from omni_jobs.openai.chat.stream import ChatStream, StreamedSound
from omni_jobs.openai.media_in_json import as_base64
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/chat/completions", tags=["openai"], route_class=OpenAIRoute)

_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string", "description": "the pipeline's name"},
        "messages": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "stream": {"type": "boolean"},
    },
    "description": "the body of a chat completion; docs/openai.md says what becomes of each parameter",
}


@router.post(
    "",
    response_model=ChatCompletion,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "The completion, or with `stream` its chunks"},
        **WAITING_ERRORS,
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def create_chat_completion(caller: Submitter, waiting: WaitingRequestDep) -> Response:
    """Make a chat completion: submit a job for each choice, and answer once they have completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    waiting.reserve(caller)
    wanted, jobs = await waiting.submitted(caller, await waiting.read(), asked_chat)
    if not wanted.stream:
        return await jobs.answer(partial(_whole, wanted, jobs))
    stream = ChatStream(jobs, partial(_streamed, jobs), wanted)
    return await jobs.stream(stream, stream.ping)


def _whole(wanted: WantedAnswer, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    keep_s = jobs.services.settings.keep_artifacts_s
    speaking = [job for job in completed if _speaks(job)]
    completion = completion_of(completed, wanted.text_stage, {job.id: sound_of(job, keep_s) for job in speaking})
    return media_answer(jobs, completion.model_dump_json(), GAP, [jobs.made(job, "audio").ref for job in speaking])


async def _streamed(jobs: SubmittedJobs, job: JobView) -> StreamedSound | None:
    """Return what a completed job has made of sound; None: no sound."""
    if not _speaks(job):
        return None
    services = jobs.services
    made = await jobs.on_artifact_thread(partial(jobs.made, job, "audio"), goes_on=True)
    pieces = as_base64(services.store.open_stream(made.ref))
    sound = sound_of(job, services.settings.keep_artifacts_s)
    return StreamedSound(sound, read_on_threads(pieces, services.artifact_threads, jobs.tenant))


def _speaks(job: JobView) -> bool:
    return "audio" in job.modalities
