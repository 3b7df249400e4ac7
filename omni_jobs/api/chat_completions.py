"""The route of chat completions, as OpenAI's clients send them: a job for each choice, for which the request waits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from omni_jobs.api.artifact_answer import read_on_threads
from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.media_answer import media_answer
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.waiting_request import WAITING_ERRORS, SubmittedJobs, WaitingRequest, WaitingRequestDep, with_ignored
from omni_jobs.http.body_reader import read_json
from omni_jobs.openai.chat.answer import GAP, ChatCompletion, completion_of, sound_of
from omni_jobs.openai.chat.request import ChatRequest, WantedAnswer
from omni_jobs.openai.chat.stream import ChatStream, StreamedSound
from omni_jobs.openai.job_errors import made_once
from omni_jobs.openai.media_in_json import as_base64
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.requests import Submission
from omni_jobs.requests.json_body import parse_body
from omni_jobs.tenants.caller import Caller
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
async def create_chat_completion(
    caller: Submitter, request: Request, services: ServicesDep, waiting: WaitingRequestDep
) -> Response:
    """Make a chat completion: submit a job for each choice, and answer once they have completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    waiting.reserve(caller)
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
        partial(_streamed, jobs),
        jobs.leave,
        jobs.place,
        stage=wanted.text_stage,
        include_usage=wanted.include_usage,
    )
    with made_once(jobs.ids[0], has_key=jobs.has_key):
        return await answer_with(stream.chunks(jobs.ids), stream.ping)


def _whole(wanted: WantedAnswer, jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    keep_s = jobs.services.settings.keep_artifacts_s
    speaking = [job for job in completed if _speaks(job)]
    completion = completion_of(completed, wanted.text_stage, {job.id: sound_of(job, keep_s) for job in speaking})
    return media_answer(jobs, completion.model_dump_json(), GAP, [jobs.made(job, "audio").ref for job in speaking])


async def _streamed(jobs: SubmittedJobs, job: JobView) -> StreamedSound | None:
    """Return what a completed job has made of sound; None: no sound."""
    if not _speaks(job):
        return None
    services, tenant = jobs.services, jobs.caller.sees
    made = await jobs.on_artifact_thread(partial(jobs.made, job, "audio"), goes_on=True)
    pieces = as_base64(services.store.open_stream(made.ref))
    sound = sound_of(job, services.settings.keep_artifacts_s)
    return StreamedSound(sound, read_on_threads(pieces, services.artifact_threads, tenant))


def _speaks(job: JobView) -> bool:
    return "audio" in job.modalities
