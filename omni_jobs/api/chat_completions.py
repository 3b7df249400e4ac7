"""The route of chat completions, as OpenAI's clients send them: a job for each choice, for which the request waits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.waiting_request import WAITING_ERRORS, SubmittedJobs, WaitingRequest, WaitingRequestDep, with_ignored
from omni_jobs.http.body_reader import read_json
from omni_jobs.openai.chat.answer import ChatAudio, ChatCompletion, completion_of, sound_of
from omni_jobs.openai.chat.request import ChatRequest, WantedAnswer
from omni_jobs.openai.chat.stream import ChatStream
from omni_jobs.openai.job_errors import made_once
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.requests import Submission
from omni_jobs.requests.json_body import parse_body
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/chat/completions", tags=["openai"], route_class=OpenAIRoute)

_MOST_SOUND_BYTES = 64 << 20  # base64 of more is not what anybody wants in JSON: the artifact has it
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
async def create_chat_completion(
    caller: Submitter, request: Request, services: ServicesDep, waiting: WaitingRequestDep
) -> Response:
    """Make a chat completion: submit a job for each choice, and answer once they have completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    waiting.check_room(caller)
    wanted, jobs = await _submitted(caller, request, services, waiting)
    answer = await (_stream(wanted, jobs) if wanted.stream else jobs.answer(partial(_whole, wanted, jobs)))
    return with_ignored(answer, wanted.ignored)


async def _submitted(
    caller: Caller, request: Request, services: Services, waiting: WaitingRequest
) -> tuple[WantedAnswer, SubmittedJobs]:
    """Read the body and submit the jobs of all choices. A function of its own, because the answer may be late."""
    settings = services.settings
    body = await read_json(request, settings.max_body_bytes)

    def parse() -> tuple[WantedAnswer, list[Submission]]:
        sent = parse_body(body, settings.max_body_bytes, settings.max_text_bytes)
        chat = ChatRequest.of(sent, services.pipelines)
        return chat.answer, chat.submissions(sent, len(body), caller, waiting.idempotency_key)

    return await waiting.submitted(caller, body, parse)


async def _stream(wanted: WantedAnswer, jobs: SubmittedJobs) -> Response:
    """Return the answer that streams the chunks. Raises JobFailure for an error that comes before the first."""
    stream = ChatStream(
        jobs.services.jobs,
        jobs.services.watch,
        jobs.see,
        lambda job: jobs.on_artifact_thread(partial(_sound, jobs, job), goes_on=True),
        jobs.leave,
        jobs.caller.sees,
        stage=wanted.text_stage,
        include_usage=wanted.include_usage,
    )
    with made_once(jobs.ids[0], has_key=jobs.has_key):
        return await answer_with(stream.chunks(jobs.ids, jobs.connection), stream.ping)


def _whole(wanted: WantedAnswer, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    sounds: dict[str, ChatAudio] = {}
    left = _MOST_SOUND_BYTES
    for job in completed:
        sound = _sound(jobs, job, left)
        if sound is not None:
            sounds[job.id] = sound
            left -= len(sound.data) * 3 // 4
    completion = completion_of(completed, wanted.text_stage, sounds)
    return Response(completion.model_dump_json(), media_type="application/json")


def _sound(jobs: SubmittedJobs, job: JobView, most_bytes: int = _MOST_SOUND_BYTES) -> ChatAudio | None:
    """Return what a completed job has made of sound, read from the store; None: no sound. Call this on a thread."""
    if "audio" not in job.modalities:
        return None
    data = jobs.services.store.read(jobs.made(job, "audio").ref, max_bytes=most_bytes)
    return sound_of(job, data, jobs.services.settings.keep_artifacts_s)
