"""The route of chat completions, as OpenAI's clients send them: a job for each choice, for which the request waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request, Response

from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.needs import Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import Gone, OmniJobsError, StillRunning
from omni_jobs.http.body_reader import read_json
from omni_jobs.http.error_answers import errors
from omni_jobs.http.places import Connection
from omni_jobs.http.request_parameters import idempotency_key_header
from omni_jobs.jobs import SubmitResult
from omni_jobs.openai.chat_completion import ChatAudio, ChatCompletion, completion_of, sound_of
from omni_jobs.openai.chat_request import ChatRequest, WantedAnswer
from omni_jobs.openai.chat_stream import ChatStream
from omni_jobs.openai.job_errors import JobFailure, check_completed, made_once
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.openai.waiting import wait_for_ends, wait_limit_s
from omni_jobs.pipelines.outputs import output
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
        **errors(400, 403, 404, 408, 409, 410, 413, 415, 429, 500, 503, 504),
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def create_chat_completion(
    caller: Submitter,
    request: Request,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None, idempotency_key_header(240, "the same key and body give the answer of the same job again")
    ] = None,
    read_timeout: Annotated[
        str | None, Header(alias="x-stainless-read-timeout", description="the seconds for which the client waits")
    ] = None,
) -> Response:
    """Make a chat completion: submit a job for each choice, and answer once they have completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `stream` the text comes as it grows.
    """
    services.watch.check_room(caller.sees)
    wanted, job_ids = await _submitted(services, request, caller, idempotency_key)
    request.state.body.end()  # nothing holds it any more, and the answer may be late
    with made_once(job_ids[0], has_key=idempotency_key is not None):
        view = _View(services, caller, wanted, job_ids, request.scope["state"].get("connection"))
        if wanted.stream:
            answer = await view.stream()
        else:
            answer = await view.whole(wait_limit_s(services.settings.wait_limit_s, read_timeout))
    if wanted.ignored:
        answer.headers["X-Ignored"] = ", ".join(wanted.ignored)
    return answer


async def _submitted(
    services: Services, request: Request, caller: Caller, key: str | None
) -> tuple[WantedAnswer, list[str]]:
    """Read the body, submit the jobs of all choices, and return how to answer, with the jobs' ids.

    Raises the error of the first that is refused, once those that were made are cancelled.
    """
    settings = services.settings
    body = await read_json(request, settings.max_body_bytes)

    def parse() -> tuple[WantedAnswer, list[Submission]]:
        sent = parse_body(body, settings.max_body_bytes, settings.max_text_bytes)
        chat = ChatRequest.of(sent, services.pipelines)
        return chat.answer, chat.submissions(sent, len(body), caller, key)

    wanted, submissions = await services.lanes.run_parsing([body], parse)
    results = await services.intake.submit_many(submissions, wait_for_decoders=False)
    made = [result for result in results if isinstance(result, SubmitResult)]
    if len(made) < len(results):
        for result in made:
            if result.created:
                await run_sync(services.jobs.cancel, result.job_id)
        raise next(result for result in results if isinstance(result, OmniJobsError))
    for result in made:
        if not result.created:
            await run_sync(services.jobs.ask_for, result.job_id)
    return wanted, [result.job_id for result in made]


@dataclass(frozen=True, slots=True)
class _View:
    """The answers that the jobs of a chat completion make."""

    services: Services
    caller: Caller
    wanted: WantedAnswer
    job_ids: Sequence[str]
    connection: Connection | None

    async def stream(self) -> Response:
        """Return the answer that streams the chunks. Raises ServerBusy if too many watch."""
        stream = ChatStream(
            self.services.jobs,
            self.services.watch,
            self._see,
            self._sound,
            self.services.left_jobs.leave,
            self.caller.sees,
            stage=self.wanted.text_stage,
            include_usage=self.wanted.include_usage,
        )
        return await answer_with(stream.chunks(self.job_ids, self.connection))

    async def whole(self, within_s: float) -> Response:
        """Return the answer once all jobs have ended. Raises JobFailure, also where one goes on after this time."""
        await wait_for_ends(self.services.watch, self.job_ids, within_s, self.caller.sees, self.connection)
        try:
            return await self.services.artifact_threads.run(self.caller.sees, self._read)
        except JobFailure as failure:
            if isinstance(failure.error, StillRunning) and self.connection is not None and self.connection.has_left:
                self.services.left_jobs.leave(self.job_ids)
            raise

    def _read(self) -> Response:
        jobs = [self._see(job_id) for job_id in self.job_ids]
        for job in jobs:
            check_completed(job)
        sounds = {job.id: sound for job in jobs if (sound := self._sound(job)) is not None}
        completion = completion_of(jobs, self.wanted.text_stage, sounds)
        return Response(completion.model_dump_json(), media_type="application/json")

    def _see(self, job_id: str) -> JobView:
        return self.services.jobs.get(job_id, self.caller.sees)

    def _sound(self, job: JobView) -> ChatAudio | None:
        """Return what a completed job has made of sound, read from the store; None: no sound."""
        if "audio" not in job.modalities:
            return None
        names = {output("audio").artifact_name(format) for format in output("audio").formats}
        name = next((artifact.name for artifact in job.artifacts if artifact.name in names), None)
        if name is None:
            raise Gone(f"the sound of job {job.id} is not kept any longer")
        artifact = self.services.jobs.artifact(job.id, name, self.caller.sees)
        data = self.services.store.read(artifact.ref, max_bytes=_MOST_SOUND_BYTES)
        return sound_of(job, data, self.services.settings.keep_artifacts_s)
