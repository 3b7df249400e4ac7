"""Pull the plug: a page of the embedded stack that kills its processes under a stream of jobs, beside their tally."""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Operates, Visit
from omni_jobs.errors import Conflict, MissingScope, NotFound, OmniJobsError, ServerBusy
from omni_jobs.http.form_reader import read_form
from omni_jobs.jobs import NUMBER, JobFilter, PastAct, Tally
from omni_jobs.requests import parse
from omni_jobs.stack.child import API, VALKEY, ChildState
from omni_jobs.stack.plugs import Plugs, PlugView
from omni_jobs.states import JobState

logger = logging.getLogger(__name__)

_PIPELINE: Final = "echo"
_STAGE_S: Final = 0.3  # that each of its two stages takes
_STREAM_S: Final = 60.0  # after which a stream ends by itself
_EVERY_S: Final = 0.2  # between the answer to a job and the next job
_MOST_JOBS: Final = 400
_GRACE_S: Final = 60.0  # the last job of a stream may be sent again for so long
_MADE_BY: Final = ("made_by", "plug")  # the label of all jobs of all streams
_STREAM: Final = "stream"  # the name of the metadata that name the stream
_STREAM_ID: Final = "^[0-9]{10}-[0-9a-f]{8}$"  # the seconds since 1970 when it began, and a random number
_KILLS_SHOWN: Final = 25
_MOST_FORM: Final = 4 << 10
_WORDS: Final = {VALKEY: "the broker", API: "the API"}


async def _plugs(request: Request) -> Plugs:
    plugs: Plugs | None = request.app.state.plugs
    if plugs is None:
        raise NotFound("only a server of the embedded stack has this page: omni-jobs up starts one")
    return plugs


PlugsDep = Annotated[Plugs, Depends(_plugs)]
StreamId = Annotated[str, Path(pattern=_STREAM_ID)]
# The plugs first: elsewhere nobody is asked to sign in for a page that is not there.
router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(_plugs)])


class Socket(NamedTuple):
    """A process with its plug, as the page shows it."""

    process: str  # the child's name
    label: str
    state: str
    is_ready: bool


class Kill(NamedTuple):
    """A kill under a stream's jobs.

    under      the jobs that had been accepted and had not ended
    ended      of them, those that have since
    went_on_s  from the kill until a job that was accepted after it had completed; None: none has yet
    """

    id: str
    process: str
    by: str
    at: datetime
    under: int
    ended: int
    went_on_s: float | None


@router.get("/plug")
async def show_plug(visit: Operates, plugs: PlugsDep) -> Response:
    """Show the page."""
    return await visit.page(
        "plug",
        "Pull the plug",
        content=await _content(visit, plugs),
        refusal=refusal(visit),
        every_s=_EVERY_S,
        stream_s=_STREAM_S,
        most=_MOST_JOBS,
    )


@router.get("/fragments/plug")
async def plug_content(visit: Operates, plugs: PlugsDep) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit, plugs))


@router.post("/plug/streams")
async def begin_stream(visit: Operates) -> Response:
    """Name a new stream of jobs, which the page submits one by one."""
    check_may(visit)
    return JSONResponse({"stream": f"{int(time.time()):010d}-{secrets.token_hex(4)}"})


@router.post("/plug/streams/{stream}/jobs/{number}")
async def submit_job(visit: Operates, stream: StreamId, number: Annotated[int, Path(ge=1, le=_MOST_JOBS)]) -> Response:
    """Submit a job of a stream. The same number again is the same job.

    Raises Conflict once the stream's time is over.
    """
    check_may(visit)
    if not -1 <= time.time() - int(stream.partition("-")[0]) <= _STREAM_S + _GRACE_S:
        raise Conflict("this stream is over: begin another one", field=_STREAM)
    body = {
        "model": _PIPELINE,
        "messages": [{"role": "user", "content": f"Job {number} of {stream}"}],
        "modalities": ["text"],
        "stages": {"first": {"delay_s": _STAGE_S}, "second": {"delay_s": _STAGE_S}},
        "metadata": dict([_MADE_BY]) | {_STREAM: stream, NUMBER: str(number)},
    }
    settings, key = visit.services.settings, f"plug-{stream}-{number}"
    submission = parse(body, settings, caller=visit.caller, idempotency_key=key)
    result = await visit.services.intake.submit(submission)
    return JSONResponse({"id": result.job_id}, 202)


@router.post("/plug/kills")
async def kill(visit: Operates, plugs: PlugsDep, request: Request) -> Response:
    """Kill a process of the stack."""
    check_may(visit)
    form = await read_form(request, _MOST_FORM, max_files=0, max_texts=1, max_text_bytes=200)
    pull = partial(plugs.pull, form.only_text("process") or "", visit.caller.actor)
    answer = visit.moved("/plug")
    if form.only_text("process") == API:  # which answers first
        answer.background = BackgroundTask(_pull_own, pull)
    else:
        await run_sync(pull)
    return answer


async def _pull_own(pull: partial[None]) -> None:
    try:
        await run_sync(pull)
    except OmniJobsError as error:
        logger.warning("the plug of the API was not pulled: %s", error)


def refusal(visit: Visit) -> str | None:
    """Return why the caller may not pull a plug although it is an operator; None: it may."""
    if visit.services.callers.auth == "keys" or visit.services.settings.serves_this_machine_alone:
        return None
    return (
        "Nobody can pull a plug here, because the server listens on an address for other machines and asks for no key. "
        "Start it with OMNI_JOBS_AUTH=keys, or on a loopback address."
    )


def check_may(visit: Visit) -> None:
    """Raise MissingScope if the caller may not pull a plug."""
    why = refusal(visit)
    if why is not None:
        raise MissingScope(why)


async def _content(visit: Visit, plugs: Plugs) -> Fragment:
    return await visit.fragment("plug", lambda: _read(visit, plugs))


def _read(visit: Visit, plugs: Plugs) -> Mapping[str, Any]:
    jobs, sees = visit.services.jobs, visit.caller.sees
    newest = jobs.list(JobFilter(metadata=(_MADE_BY,), tenant=sees), limit=1, brief=True).jobs
    stream = newest[0].metadata.get(_STREAM, "") if newest else ""
    tally = jobs.tally(_STREAM, stream, sees)
    begun_at = tally.jobs[0].created_at if tally.jobs else datetime.now(UTC)
    kills = jobs.acts(action="kill", since=begun_at.timestamp(), at_most=_KILLS_SHOWN)
    sockets, trouble = _sockets(plugs)
    return {
        "now": datetime.now(UTC),
        "stream": stream,
        "tally": tally,
        "kills": kills_of(kills, tally),
        "sockets": sockets,
        "trouble": trouble,
        "has_echo": any(each.process.startswith(f"worker {_PIPELINE}.") for each in sockets) or trouble is not None,
        "may_pull": refusal(visit) is None,
        "job_s": 2 * _STAGE_S,
    }


def _sockets(plugs: Plugs) -> tuple[list[Socket], str | None]:
    """Return the processes whose plugs may be pulled, the workers first; and why they are not known, if so."""
    try:
        views = sorted(plugs.views(), key=lambda view: view.child in _WORDS)
    except ServerBusy as error:
        return [], error.message
    return [_socket(view) for view in views], None


def _socket(view: PlugView) -> Socket:
    return Socket(view.child, label_of_process(view.child), view.state, view.state is ChildState.READY)


def label_of_process(child: str) -> str:
    """Return how a page calls a child of the stack."""
    return _WORDS.get(child, child)


def child_of_label(label: str) -> str:
    """Return the child of the stack that a page calls so; what none is called stays as it is."""
    return next((child for child, word in _WORDS.items() if word == label), label)


def kills_of(acts: Sequence[PastAct], tally: Tally) -> list[Kill]:
    """Return what each of these kills did to the jobs of a stream."""
    return [_kill(act, datetime.fromtimestamp(act.at, UTC), tally) for act in acts]


def _kill(act: PastAct, at: datetime, tally: Tally) -> Kill:
    under = [job for job in tally.jobs if job.created_at <= at and (job.finished_at is None or job.finished_at > at)]
    later = [
        job.finished_at
        for job in tally.jobs
        if job.created_at > at and job.finished_at is not None and job.state is JobState.COMPLETED
    ]
    went_on_s = (min(later) - at).total_seconds() if later else None
    ended = sum(1 for job in under if job.finished_at is not None)
    return Kill(act.id, label_of_process(act.target), act.actor, at, len(under), ended, went_on_s)
