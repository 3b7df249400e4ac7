"""Routes of responses, as OpenAI's clients send them: submit, get, stream, cancel, delete, and the input's items."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from omni_jobs.api import cancelled_job
from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.needs import Reader, Submitter
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.submitted_jobs import SubmittedJobs
from omni_jobs.api.until_answered import UntilAnswered
from omni_jobs.api.waiting_request import WAITING_ERRORS, WaitingRequest, WaitingRequestDep
from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.error_answers import errors
from omni_jobs.http.request_parameters import WholeNumber
from omni_jobs.openai.responses.answer import ModelResponse, response_id_of, response_of
from omni_jobs.openai.responses.earlier_response import FIELD, chars_of, messages_before
from omni_jobs.openai.responses.input_items import InputItems, page_of
from omni_jobs.openai.responses.numbers import MOST
from omni_jobs.openai.responses.request import WantedResponse, asked_response, kept_of, no_response
from omni_jobs.openai.responses.stream import ResponseStream
from omni_jobs.openai.route import OpenAIRoute
from omni_jobs.tenants.caller import Caller
from omni_jobs.views import JobView

router = APIRouter(prefix="/v1/responses", tags=["openai"], route_class=OpenAIRoute)

_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string", "description": "the pipeline's name"},
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]},
        "background": {"type": "boolean"},
        "stream": {"type": "boolean"},
    },
    "description": "the body of a response; docs/openai.md says what becomes of each parameter",
}
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The response, or with `stream` its events"}
}


class DeletedResponse(BaseModel):
    """A response that is no more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


async def _job_id(response_id: str) -> str:  # async, because FastAPI calls other functions on a thread
    found = _RESPONSE_ID.fullmatch(response_id)
    if found is None:
        raise no_response(response_id)
    return f"job-{found[1]}"


ResponseJobId = Annotated[str, Depends(_job_id)]
"""The id of the job that is the response of a path. A text that is no id is answered as an unknown one."""
Include = Annotated[
    list[str] | None, Query(alias="include[]", max_length=16, description="taken for OpenAI's sake: it adds nothing")
]


@router.post(
    "",
    response_model=ModelResponse,
    responses={**_STREAMED, **WAITING_ERRORS},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def create_response(caller: Submitter, services: ServicesDep, waiting: WaitingRequestDep) -> Response:
    """Make a response: submit a job, and answer once it has completed.

    504 `still_running`, with `job_id`, if that takes longer than the server or the client waits: the job goes
    on. With `background` the answer comes at once, and the job goes on whatever becomes of its client. With
    `stream` the events come, and `GET` takes them up where they break off.
    """
    wanted, jobs = await _submitted(caller, services, waiting)
    if wanted.stream:
        reader = _reader(services, caller, partial(_read, services, caller, jobs.ids[0]))
        return await jobs.stream(ResponseStream(jobs.jobs, jobs.watch, reader, jobs.reserve()))
    if wanted.background:
        return await jobs.answer_now(_answered(services, caller, jobs.ids[0]))
    return await jobs.answer(partial(_whole, jobs))


async def _submitted(
    caller: Caller, services: Services, waiting: WaitingRequest
) -> tuple[WantedResponse, SubmittedJobs]:
    """Read the body and submit the job. A function of its own, because the answer may be late."""
    body = await waiting.read()
    sent = await services.lanes.run_parsing([body.text], body.parse)
    if sent.get("stream") is True or sent.get("background") is not True:
        waiting.reserve(caller)
    earlier: list[dict[str, Any]] = []
    more_bytes = 0  # of these, for which the request waits as if it had sent them
    if sent.get(FIELD) is not None:
        earlier, more_bytes = await services.list_threads.run(
            caller.sees, partial(_earlier, services, caller, sent[FIELD])
        )
    parsed = body._replace(size=body.size + more_bytes, parse=lambda: sent)
    return await waiting.submitted(caller, parsed, partial(asked_response, earlier=earlier))


def _earlier(services: Services, caller: Caller, response_id: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the messages of the response that another follows, and their characters. Call this on a thread."""
    found = _RESPONSE_ID.fullmatch(response_id) if isinstance(response_id, str) else None
    if found is None:
        raise InvalidRequest("must be the id of a response", field=FIELD)
    try:
        messages = messages_before(*_read(services, caller, f"job-{found[1]}"))
    except NotFound:
        raise NotFound(f"there is no response {response_id!r:.80}", field=FIELD) from None
    return messages, chars_of(messages)


def _whole(jobs: SubmittedJobs, completed: Sequence[JobView]) -> Response:
    job = completed[0]
    return _shown(job, jobs.jobs.admitted_request(job.id, jobs.tenant))


@router.get("/{response_id}", response_model=ModelResponse, responses={**_STREAMED, **errors(400, 404, 503)})
async def get_response(
    caller: Reader,
    job_id: ResponseJobId,
    request: Request,
    services: ServicesDep,
    until_answered: UntilAnswered,
    include: Include = None,
    stream: Annotated[bool, Query(description="stream the events that come after `starting_after`")] = False,
    starting_after: Annotated[
        int,
        Query(ge=-1, le=MOST, description="the `sequence_number` of the last event that the client has"),
        WholeNumber,
    ] = -1,
    include_obfuscation: Annotated[bool, Query(description="taken for OpenAI's sake: nothing is obfuscated")] = False,
) -> Response:
    """Get a response, whole once its job has completed. With `stream` its events, which any server goes on with."""
    read = partial(_read, services, caller, job_id, is_asked_for=True)
    if not stream:
        return await services.list_threads.run(caller.sees, lambda: _shown(*read()))
    if request.state.method == "HEAD":  # it would be answered once the stream ends
        await services.list_threads.run(caller.sees, read)
        return Response(media_type="text/event-stream")
    place = services.watch.reserve(caller.sees, request.scope["state"].get("connection"))
    until_answered.enter_context(place)
    reader = _reader(services, caller, read)
    return await answer_with(
        ResponseStream(services.jobs, services.watch, reader, place, after=starting_after).events()
    )


@router.post("/{response_id}/cancel", response_model=ModelResponse, responses=errors(400, 404, 503))
async def cancel_response(
    caller: Submitter, job_id: ResponseJobId, request: Request, services: ServicesDep
) -> Response:
    """Stop a response, whether it runs in the background or a client waits for it. One that has ended stays as it is.

    The answer comes once its worker has stopped, 5 s later at the latest: then it is still `in_progress`.
    """
    await services.list_threads.run(caller.sees, partial(_read, services, caller, job_id))
    await cancelled_job.cancel(services, caller, job_id, request)
    return await _answered(services, caller, job_id)


@router.delete("/{response_id}", response_model=DeletedResponse, responses=errors(400, 404, 409, 503))
async def delete_response(
    caller: Submitter, job_id: ResponseJobId, request: Request, services: ServicesDep
) -> DeletedResponse:
    """Delete a response, with its job and all data of that. One that has not ended is cancelled first.

    409 if its worker has not stopped after 5 s: delete it again in a moment.
    """
    await services.list_threads.run(caller.sees, partial(_read, services, caller, job_id))
    await cancelled_job.delete(services, caller, job_id, request, "response_id")
    return DeletedResponse(id=response_id_of(job_id))


@router.get("/{response_id}/input_items", response_model=InputItems, responses=errors(400, 404, 503))
async def list_input_items(
    caller: Reader,
    job_id: ResponseJobId,
    services: ServicesDep,
    include: Include = None,
    limit: Annotated[int, Query(ge=1, le=100), WholeNumber] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    after: Annotated[str | None, Query(max_length=100, description="the id of an item: those that follow it")] = None,
) -> Response:
    """List the items of a response's input, those of the responses that it follows among them. Media are left out."""

    def page() -> Response:
        _, request = _read(services, caller, job_id)
        items = page_of(job_id, request, limit=limit, newest_first=order == "desc", after=after)
        return Response(items.model_dump_json(), media_type="application/json")

    return await services.list_threads.run(caller.sees, page)


# A request has MiB, perhaps. So it is read on the threads of lists, of which a tenant has a part only.


async def _answered(services: Services, caller: Caller, job_id: str) -> Response:
    """Return the answer with a response that this request has made or changed, however many others are read."""
    work = partial(_read, services, caller, job_id)
    return await services.list_threads.run(caller.sees, lambda: _shown(*work()), goes_on=True)


def _reader(
    services: Services, caller: Caller, read: Callable[[], tuple[JobView, Mapping[str, Any]]]
) -> Callable[[], Awaitable[tuple[JobView, Mapping[str, Any]]]]:
    """Return what reads a response for its stream."""
    return partial(services.list_threads.run, caller.sees, read, goes_on=True)


def _read(
    services: Services, caller: Caller, job_id: str, *, is_asked_for: bool = False
) -> tuple[JobView, Mapping[str, Any]]:
    """Return a response's job as the caller may see it, and its admitted request. Raises NotFound.

    ``is_asked_for``: by a client that comes back for the response.
    """
    get = services.jobs.get_asked if is_asked_for else services.jobs.get
    try:
        request = services.jobs.admitted_request(job_id, caller.sees)
        kept_of(request, response_id_of(job_id))
        return get(job_id, caller.sees), request
    except NotFound:
        raise no_response(response_id_of(job_id)) from None


def _shown(job: JobView, request: Mapping[str, Any]) -> Response:
    return Response(response_of(job, request).model_dump_json(), media_type="application/json")
