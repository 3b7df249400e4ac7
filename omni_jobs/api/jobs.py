"""Routes of jobs: submit, get, list, cancel, retry, fork, advance, delete, and a job's events."""

from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import TypeAdapter

from omni_jobs.api.asked_job import asked_job
from omni_jobs.api.event_stream import EventStream, TextPlace, answer_with
from omni_jobs.api.examples import EVENT_STREAM, EVENTS, FORK, JOB, MULTIPART, SUBMITS
from omni_jobs.api.job_filters import (
    MOST_METADATA,
    NAME,
    REFERENCE,
    TENANT,
    Pair,
    TimeOfQuery,
    name_and_version,
    pairs_of,
    tenant_of,
)
from omni_jobs.api.needs import Reader, Submitter, Viewer
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.api.until_answered import UntilAnswered
from omni_jobs.http.body_reader import read_body, read_json
from omni_jobs.http.error_answers import errors
from omni_jobs.http.path_prefix import below
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import (
    JOB_ID,
    LONGEST_WAIT_S,
    CancelAfter,
    JobId,
    PlainNumber,
    WholeNumber,
    idempotency_key_header,
    preferred_wait,
)
from omni_jobs.jobs import JobFilter, SubmitResult, as_written
from omni_jobs.requests import cancel_after, parse, parse_fork
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.views import EventView, JobView, Page

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_EVENTS = TypeAdapter(list[EventView])
_A_JOB: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": JOB}}}}


def _answer(view: JobView | Page, status: int = 200) -> Response:
    """Return a view as JSON. Call this on a thread, because a large view would hold up the event loop."""
    return Response(view.model_dump_json(), status, media_type="application/json")


Prefer = Annotated[  # for the document; several such headers count as one
    str | None,
    Header(
        alias="Prefer",
        max_length=1000,
        description="`wait=N`: answer once the job has ended, or after N seconds (60 at most)",
        examples=["wait=1"],
    ),
]


@router.post(
    "",
    status_code=202,
    response_model=JobView,
    responses={
        202: {"description": "Accepted: a new job", "content": {"application/json": {"example": JOB}}},
        200: {"description": "The job that this Idempotency-Key made before, or that has ended", "model": JobView},
        **errors(403, 404, 408, 413, 415, 429, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}, "examples": SUBMITS},
                "multipart/form-data": {"schema": MULTIPART},
            },
        }
    },
)
async def submit_job(
    caller: Submitter,
    request: Request,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None, idempotency_key_header(255, "the same key and body return the same job again")
    ] = None,
    cancel_after_: CancelAfter = None,
    prefer: Prefer = None,
) -> Response:
    """Submit a job. Everything is checked first, then it is stored, then the job waits for its first stage.

    The body is a chat completion's, with `modalities` and parameters by stage. docs/api.md lists all fields.
    A multipart body carries the same JSON in its part `request`, and embeddings in place of messages in its
    part `prompt_embeds`. 429 when as many jobs wait as may wait; `Retry-After` says when there is probably
    room again.

    With `Prefer: wait=N` the answer is the job as it has ended (200), or as it is after that time (202);
    `Preference-Applied` says that the request has waited.
    """
    expires_in_s = None if cancel_after_ is None else cancel_after(cancel_after_)
    result = await _submitted(services, caller, request, idempotency_key, expires_in_s)
    return await _answered(services, caller, request, result)


async def _answered(services: Services, caller: Caller, request: Request, result: SubmitResult) -> Response:
    """Answer a submit with its job: as it was written, or once it has ended, if the client prefers to wait."""
    request.state.body.end()  # nothing holds it any more, and the answer may be late
    status = 202 if result.created else 200
    within_s = preferred_wait(request.headers.getlist("Prefer"))
    connection = request.scope["state"].get("connection")
    if within_s and await services.watch.until_ended(result.job_id, within_s, caller.sees, connection):
        view = await run_sync(asked_job, services, caller, result.job_id)
        answer = await run_sync(_answer, view, 200 if view.status.is_final else status)
        answer.headers["Preference-Applied"] = f"wait={within_s}"
        answer.headers["Location"] = f"{services.settings.root_path}/v1/jobs/{result.job_id}"
        return answer
    if result.job is not None and result.created_at is not None:
        answer = _answer(as_written(result.job, result.created_at), status)
    else:
        answer = await run_sync(lambda: _answer(asked_job(services, caller, result.job_id), status))
    answer.headers["Location"] = f"{services.settings.root_path}/v1/jobs/{result.job_id}"
    return answer


async def _submitted(
    services: Services, caller: Caller, request: Request, idempotency_key: str | None, expires_in_s: float | None
) -> SubmitResult:
    """Read the body and submit its job. A function of its own, because the answer may be late."""
    body, prompt_embeds = await read_body(request, services.settings.max_body_bytes)
    parse_body = partial(
        parse,
        body,
        services.settings,
        prompt_embeds=prompt_embeds,
        caller=caller,
        idempotency_key=idempotency_key,
        expires_in_s=expires_in_s,
    )
    file_bytes = 0 if prompt_embeds is None else len(prompt_embeds)
    submission = await services.lanes.run_parsing([body], parse_body, more_bytes=file_bytes)
    return await services.intake.submit(submission)


@router.get("/{job_id}", response_model=JobView, responses={**_A_JOB, **errors(404, 503)})
async def get_job(
    caller: Viewer,
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    wait: Annotated[
        float,
        Query(
            ge=0, le=LONGEST_WAIT_S, description="seconds: answer once the job has ended, at the latest after this time"
        ),
        PlainNumber,
    ] = 0.0,
) -> Response:
    """Get a job with its stages, and with its result once it is completed.

    With `wait` the answer comes within a moment of the job's end, so that the client need not poll.
    Check `status` all the same, because a job that has not ended is answered as well when the time is
    up or the server stops, and at once while too many requests wait: then ask again after a moment.
    """

    def read() -> tuple[bool, Response]:
        job = asked_job(services, caller, job_id)
        return job.status.is_final, _answer(job)

    has_ended, answer = await run_sync(read)
    connection = request.scope["state"].get("connection")
    if wait and not has_ended and await services.watch.until_ended(job_id, wait, caller.sees, connection):
        _, answer = await run_sync(read)
    return answer


@router.get("", response_model=Page, responses=errors(403, 503))
async def list_jobs(
    caller: Reader,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100), WholeNumber] = 20,
    cursor: Annotated[str | None, Query(pattern=f"^{JOB_ID.pattern}$", description="`next_cursor` of a page")] = None,
    status: Annotated[JobState | None, Query()] = None,
    pipeline: Annotated[str | None, Query(pattern=REFERENCE, description="NAME, or NAME@VERSION")] = None,
    stage: Annotated[
        str | None,
        Query(pattern=NAME, description="where the job stands: its stage of this name is queued, runs or has failed"),
    ] = None,
    error_code: Annotated[
        str | None,
        Query(
            pattern=NAME,
            description="of the job's error: `quarantined`, `model_error`, `deadline_exceeded`, …",
            examples=["quarantined"],
        ),
    ] = None,
    metadata: Annotated[
        list[Pair] | None,
        Query(max_length=MOST_METADATA, description="NAME=VALUE that the job's metadata have; may be repeated"),
    ] = None,
    created_after: Annotated[
        TimeOfQuery, Query(description="RFC 3339 with a zone, or unix seconds: at this time or later")
    ] = None,
    created_before: Annotated[TimeOfQuery, Query(description="the same: before this time")] = None,
    tenant: Annotated[str | None, Query(pattern=TENANT, description="whose jobs, where a caller sees all")] = None,
    brief: Annotated[bool, Query(description="leave every `result` out: it is null")] = False,
) -> Response:
    """List jobs, the newest first.

    A page holds `limit` jobs, or fewer: it ends early where the texts of its jobs (results, progress,
    errors) come to 2 MiB, with one job at least, and where several filters leave few of many jobs that
    were looked at. Go by `next_cursor`, not by the number of jobs.
    """
    name, version = name_and_version(pipeline)
    wanted = JobFilter(
        states=None if status is None else frozenset([status]),
        pipeline=name,
        version=version,
        stage=stage,
        error_code=error_code,
        metadata=pairs_of(metadata or ()),
        created_after=created_after,
        created_before=created_before,
        tenant=tenant_of(caller, tenant),
    )

    def read() -> Response:
        with short_switch_interval():
            page = services.jobs.list(wanted, limit, cursor, brief)
            jobs = [below(services.settings.root_path, job) for job in page.jobs]
            return _answer(page.model_copy(update={"jobs": jobs}))

    return await services.list_threads.run(caller.sees, read)


@router.post("/{job_id}/cancel", response_model=JobView, responses={**_A_JOB, **errors(403, 404, 503)})
def cancel_job(caller: Submitter, job_id: JobId, services: ServicesDep) -> Response:
    """Stop a job. A stage that waits stops at once, one that runs as soon as its worker knows (`cancelling`).

    A job that has ended keeps its status.
    """
    services.jobs.cancel(job_id, caller.sees, by=caller.actor)
    return _answer(asked_job(services, caller, job_id))


@router.post(
    "/{job_id}/retry",
    response_model=JobView,
    responses={**_A_JOB, **errors(403, 404, 409, 429, 503)},
)
async def retry_job(
    caller: Submitter,
    job_id: JobId,
    services: ServicesDep,
    from_stage: Annotated[
        str | None,
        Query(max_length=100, description="run this stage again, and all that follow it", examples=["talker"]),
    ] = None,
    version: Annotated[
        str | None,
        Query(
            max_length=20,
            description="run them on this version of the pipeline, if its stages take what earlier ones have handed on",
            examples=["2"],
        ),
    ] = None,
) -> Response:
    """Run again the stages of an ended job that did not succeed, `from_stage`, and all stages that follow these.

    Other stages do not run again. The job keeps its id, is `queued`, counts one more in `retries`, and has no
    deadline any more. 409 while the job has not ended, when no stage is to run, and when the data that a
    stage reads, or artifacts of stages that do not run again, are not kept any longer: the message then names a
    stage from which it can go on. With `version` the job is of that version afterwards; 409 tells what differs.
    """
    may_be_high = caller.may(Scope.PRIORITY)
    await services.intake.retry(
        job_id,
        from_stage,
        caller.sees,
        caller.limits,
        version=version,
        may_be_high=may_be_high,
        by=caller.actor,
    )
    return await run_sync(lambda: _answer(asked_job(services, caller, job_id)))


@router.post(
    "/{job_id}/fork",
    status_code=202,
    response_model=JobView,
    responses={
        202: {"description": "Accepted: a new job", "content": {"application/json": {"example": JOB}}},
        200: {"description": "The job that this Idempotency-Key made before, or that has ended", "model": JobView},
        **errors(403, 404, 408, 409, 413, 415, 429, 503),
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": FORK}}}},
)
async def fork_job(
    caller: Submitter,
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    idempotency_key: Annotated[
        str | None, idempotency_key_header(255, "the same key, job and body return the same fork again")
    ] = None,
    cancel_after_: CancelAfter = None,
    prefer: Prefer = None,
) -> Response:
    """Submit a new job that takes over the stages of this one before `from_stage`, and runs the others anew.

    It has the request of this job but for the fields of the body. What it takes over costs nothing again. The job
    that is forked stays as it is, and may still run. 409 when a stage to take over has not succeeded, when what a
    stage reads is not kept any longer (`keep_payloads` keeps it for a time), and when this server has another file
    of the pipeline. With `Prefer: wait=N` it is answered as a submit is.
    """
    expires_in_s = None if cancel_after_ is None else cancel_after(cancel_after_)
    result = await _forked(services, caller, request, job_id, idempotency_key, expires_in_s)
    return await _answered(services, caller, request, result)


async def _forked(
    services: Services,
    caller: Caller,
    request: Request,
    job_id: str,
    idempotency_key: str | None,
    expires_in_s: float | None,
) -> SubmitResult:
    """Read the body and fork the job. A function of its own, because the answer may be late."""
    body = await read_json(request, services.settings.max_body_bytes)
    parse_body = partial(
        parse_fork,
        body,
        services.settings,
        caller=caller,
        idempotency_key=idempotency_key,
        expires_in_s=expires_in_s,
    )
    return await services.intake.fork(job_id, await services.lanes.run_parsing([body], parse_body))


@router.post("/{job_id}/advance", response_model=JobView, responses={**_A_JOB, **errors(403, 404, 409, 503)})
def advance_job(caller: Submitter, job_id: JobId, services: ServicesDep) -> Response:
    """Bring a job that nobody has started to the front of its tenant's line. Doing it again changes nothing.

    The jobs of that line, those of its pipeline and priority that wait, change their turns among each other: other
    tenants wait for no job longer than before. 409 for a job that has begun or ended, or that more than 5,000 of its
    tenant's stand before.
    """
    services.jobs.advance(job_id, caller.sees, by=caller.actor)
    return _answer(asked_job(services, caller, job_id))


@router.delete("/{job_id}", status_code=204, response_class=Response, responses=errors(403, 404, 409, 503))
def delete_job(caller: Submitter, job_id: JobId, services: ServicesDep) -> None:
    """Delete a job that has ended, with all its data: its rows at once, its objects within seconds.

    409 while it has not ended: cancel it first.
    """
    services.jobs.delete(job_id, caller.sees, by=caller.actor)


@router.get(
    "/{job_id}/events",
    response_model=list[EventView],
    responses={
        200: {"content": {"application/json": {"example": EVENTS}, "text/event-stream": {"example": EVENT_STREAM}}},
        **errors(404, 503),
    },
)
async def list_events(
    caller: Viewer,
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    until_answered: UntilAnswered,
    starting_after: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="the id of an event: those after it"), WholeNumber
    ] = 0,
    text_from: Annotated[
        str | None,
        Query(
            max_length=2000,
            description="STAGE:ATTEMPT:OFFSET, or several with commas: stream these texts from so many characters on",
            examples=["thinker:1:250"],
        ),
    ] = None,
    last_event_id: Annotated[int, Header(ge=0, le=2**31 - 1), WholeNumber] = 0,
) -> Response:
    """List the events of a job, the oldest first. Events have a time to live of their own.

    With `Accept: text/event-stream` they are streamed as they come, together with all that changes: stages,
    progress, text, previews, artifacts. The stream ends with the job's end. Any server can go on with it.
    """
    after = max(starting_after, last_event_id)
    if "text/event-stream" not in request.headers.get("accept", ""):
        return await services.list_threads.run(caller.sees, lambda: _events(services, caller, job_id, after))
    places = [] if text_from is None else [TextPlace.of(each) for each in text_from.split(",")]
    if request.state.method == "HEAD":  # it would be answered once the stream ends
        await run_sync(services.jobs.get, job_id, caller.sees)
        return Response(media_type="text/event-stream")
    connection = request.scope["state"].get("connection")
    stream = EventStream(
        services.jobs,
        services.watch,
        partial(asked_job, services, caller, job_id),
        caller.sees,
        until_answered.enter_context(services.watch.reserve(caller.sees, connection)),
        after=after,
        places={place.stage: place for place in places},
    )
    return await answer_with(stream.events())


def _events(services: Services, caller: Caller, job_id: str, after: int) -> Response:
    """Return the events of a job as JSON to a caller who asks for it so. Call this on a thread."""
    events = [each for each in services.jobs.events(job_id, caller.sees) if each.id > after]
    services.jobs.ask_for([job_id])
    return Response(_EVENTS.dump_json(events), media_type="application/json")
